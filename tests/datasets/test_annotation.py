# Copyright (c) mmdet_megdet contributors. All rights reserved.
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from pycocotools import mask as mask_utils

from mmdet_megdet.demo_data import annotate, polygons


def decode(segmentation, shape):
    if isinstance(segmentation, list):
        parts = mask_utils.frPyObjects(segmentation, *shape)
        segmentation = mask_utils.merge(parts)
    return mask_utils.decode(segmentation)


@settings(max_examples=300)
@given(
    arrays(
        np.uint8,
        array_shapes(min_dims=2, max_dims=2, max_side=14),
        elements=st.integers(0, 1),
    ).filter(np.any)
)
def test_polygons_give_back_any_mask(mask):
    np.testing.assert_array_equal(decode(polygons(mask), mask.shape), mask)


@pytest.mark.parametrize(
    ('rows', 'parts'),
    [
        (['###', '###'], 1),
        (['##.', '#..', '###'], 1),
        # A hole, and a hole with an island.
        (['###', '#.#', '###'], 2),
        (['#####', '#...#', '#.#.#', '#...#', '#####'], 3),
        # Two parts that touch at a corner, and two apart.
        (['##..', '##..', '..##'], 1),
        (['#.#', '#.#'], 2),
    ],
)
def test_polygons_of_known_masks(rows, parts):
    mask = np.array([[c == '#' for c in row] for row in rows], np.uint8)
    found = polygons(mask)
    assert len(found) == parts
    np.testing.assert_array_equal(decode(found, mask.shape), mask)


def test_polygon_runs_along_pixel_edges():
    mask = np.zeros((5, 6), np.uint8)
    mask[1:3, 2:5] = 1
    (polygon,) = polygons(mask)
    corners = {(2, 1), (5, 1), (5, 3), (2, 3)}
    assert set(zip(polygon[::2], polygon[1::2], strict=True)) == corners
    assert len(polygon) == 8


@pytest.mark.parametrize('crowd', [False, True])
def test_annotate(crowd):
    mask = np.zeros((7, 9), bool)
    mask[2:5, 3:8] = True
    mask[3, 4] = False
    found = annotate(mask, crowd)
    assert found['bbox'] == [3, 2, 5, 3]
    assert found['area'] == 14
    assert found['iscrowd'] == int(crowd)
    assert isinstance(found['segmentation'], dict if crowd else list)
    np.testing.assert_array_equal(
        decode(found['segmentation'], mask.shape), mask
    )
