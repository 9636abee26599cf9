# Copyright (c) mmdet_megdet contributors. All rights reserved.
import cv2
import numpy as np
import pytest

from mmdet_megdet.demo_data import (
    CLASSES,
    METAINFO,
    MIN_VISIBLE,
    _contours,
    _rasterise,
    compose,
)

RADIUS = 50.0
# Areas of a circle, of regular polygons and of a ring of inner radius 0.55,
# for an outer radius of 1; a star is 10 triangles of sides 1 and 0.42.
AREAS = {
    'circle': np.pi,
    'square': 2.0,
    'triangle': 3 * np.sqrt(3) / 4,
    'star': 10 * 0.5 * 0.42 * np.sin(np.pi / 5),
    'ring': np.pi * (1 - 0.55**2),
}


@pytest.mark.parametrize('name', CLASSES)
def test_coverage_is_the_area_of_the_shape(name):
    contours = _contours(CLASSES.index(name), (64.3, 63.6), RADIUS, 0.3)
    area = _rasterise(contours, 128, 128).sum() / 255
    # fillPoly also fills the points under the outline: about half a fine
    # step (an eighth of a pixel) along the perimeter, at most 4 pi R for the
    # ring's two circles; a quarter of a pixel is allowed for.
    assert abs(area - AREAS[name] * RADIUS**2) < 0.25 * 4 * np.pi * RADIUS


@pytest.mark.parametrize('name', CLASSES)
def test_coverage_lies_where_the_shape_is(name):
    contours = _contours(CLASSES.index(name), (40.0, 90.0), 20.0, 0.0)
    coverage = _rasterise(contours, 160, 128).astype(float)
    assert coverage.shape == (128, 160)
    y, x = np.mgrid[:128, :160] + 0.5
    # All these shapes have their centroid in their centre. fillPoly rounds
    # outlines to the fine grid: its steps are a quarter of a pixel.
    centroid = [(coverage * c).sum() / coverage.sum() for c in (x, y)]
    assert centroid == pytest.approx([40, 90], abs=0.25)


@pytest.mark.parametrize('index', range(32))
def test_layers(index):
    layers = compose(np.random.default_rng(index), index, 96, 64)
    assert bool(layers) == (index not in (15, 31))
    assert [layer.crowd for layer in layers if layer.crowd] == (
        [True] if index % 8 == 3 else []
    )
    if layers:
        assert layers[0].category == index % len(CLASSES)
    hidden = np.zeros((64, 96), bool)
    for layer in reversed(layers):
        whole = layer.coverage >= 128
        np.testing.assert_array_equal(layer.visible, whole & ~hidden)
        assert layer.visible.sum() >= MIN_VISIBLE * whole.sum() > 0
        hidden |= whole


@pytest.mark.parametrize('size', [(32, 32), (32, 300), (640, 33)])
def test_any_size_holds_objects_and_crowds(size):
    for index in (0, 3):
        layers = compose(np.random.default_rng(0), index, *size)
        assert layers
        assert all(layer.visible.any() for layer in layers)


def test_crowd_members_stand_apart():
    for index in range(3, 128, 8):
        layers = compose(np.random.default_rng(index), index, 128, 128)
        whole = (layers[0].coverage >= 128).astype(np.uint8)
        members = cv2.connectedComponents(whole)[0] - 1
        assert 9 <= members <= 25


def test_metainfo():
    assert METAINFO['classes'] == CLASSES
    assert len(set(METAINFO['palette'])) == len(CLASSES)
