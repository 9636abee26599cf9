# Copyright (c) mmdet_megdet contributors. All rights reserved.
import cv2
import numpy as np

from mmdet_megdet.demo_data import METAINFO, _texture, make_image, relight

SIZE = (96, 64)


def test_textures_stay_in_range_and_differ():
    made = [_texture(np.random.default_rng(i), 96, 64) for i in range(60)]
    assert all(texture.shape == (64, 96) for texture in made)
    assert min(t.min() for t in made) >= -1
    assert max(t.max() for t in made) <= 1
    plain = [not t.any() for t in made]
    two_tones = [set(np.unique(t)) == {-1.0, 1.0} for t in made]
    # One of six kinds is plain, two have two tones: the seeds are fixed, and
    # for 60 random ones a group would be missing once in about 50,000 runs.
    assert any(plain)
    assert any(two_tones)
    assert sum(plain) + sum(two_tones) < 60


def test_light_of_a_grey_image():
    grey = np.full((64, 64, 3), 100, np.uint8)
    lit = [relight(np.random.default_rng(i), grey) for i in range(300)]
    means = np.array([image.mean(axis=(0, 1)) for image in lit])
    # 100 * gain * cast + offset, a mean of 4096 noise values of standard
    # deviation 8 at most (5 standard errors), half a level for rounding.
    # Clipping at 0 can only raise the lower end.
    slack = 16 + 5 * 8 / 64 + 0.5
    assert means.max() <= 100 * 1.6 * 1.5 + slack
    assert means.min() >= max(0, 100 * 0.15 * 0.5 - slack)
    # Of 900 uniform products, the ends of the range come close.
    assert means.max() > 200
    assert means.min() < 10
    noise = [image.std(axis=(0, 1)).max() for image in lit]
    assert max(noise) < 8 * (1 + 5 / np.sqrt(2 * 4096)) + 0.5
    assert max(noise) > 7


def test_objects_have_the_colour_of_their_class():
    for index in range(10):
        image, annotations = make_image('train', index, (128, 128))
        for annotation in annotations:
            if annotation['iscrowd']:
                continue
            parts = [
                np.array(part).reshape(-1, 2)
                for part in annotation['segmentation']
            ]
            mask = cv2.fillPoly(np.zeros((128, 128), np.uint8), parts, 1)
            mean = image[mask > 0].mean(axis=0)
            distance = np.linalg.norm(METAINFO['palette'] - mean, axis=1)
            assert distance.argmin() + 1 == annotation['category_id']


def test_light_varies_each_image_but_not_the_scene():
    plain = [make_image('train', i, SIZE) for i in range(64)]
    varied = [make_image('train', i, SIZE, 0, True) for i in range(64)]
    assert [p[1] for p in plain] == [v[1] for v in varied]
    before = np.array([p[0].mean(axis=(0, 1)) for p in plain])
    after = np.array([v[0].mean(axis=(0, 1)) for v in varied])
    # Gain times cast: 0.15 * 0.5 to 1.6 * 1.5, offset 16, 5 standard errors
    # of at most 8 / sqrt(96 * 64) for noise, half a level for rounding;
    # clipping only pulls a mean into 0..255.
    slack = 16 + 5 * 8 / np.sqrt(96 * 64) + 0.5
    assert np.all(after <= np.minimum(2.4 * before + slack, 255))
    assert np.all(after >= np.minimum(0.075 * before, 100) - slack)
    # Gain times cast has a standard deviation of 0.50, so it adds about 60
    # levels to greys of 120 on average, less what clipping takes; the plain
    # means differ by about 30.
    assert after.std() > 1.5 * before.std()
    # The cast tells the channels apart, which were alike.
    cast = after.max(axis=1) / after.min(axis=1)
    assert (
        np.median(cast)
        > 1.3
        > np.median(before.max(axis=1) / before.min(axis=1))
    )
