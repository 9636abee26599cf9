# Copyright (c) mmdet_megdet contributors. All rights reserved.
import cv2
import numpy as np

from mmdet_megdet.demo_data import make_image

SIZE = (96, 64)


def same(one, other):
    return np.array_equal(one[0], other[0]) and one[1] == other[1]


def test_a_image_is_its_seed_split_and_number():
    reference = make_image('train', 3, SIZE, seed=5)
    assert reference[0].shape == (64, 96, 3)
    assert reference[0].dtype == np.uint8
    assert same(reference, make_image('train', 3, SIZE, seed=5))
    assert not same(reference, make_image('train', 4, SIZE, seed=5))
    assert not same(reference, make_image('val', 3, SIZE, seed=5))
    assert not same(reference, make_image('train', 3, SIZE, seed=6))


def test_threads_do_not_matter():
    threads = cv2.getNumThreads()
    made = []
    try:
        for number in (1, 4):
            cv2.setNumThreads(number)
            made.append([make_image('train', i, (320, 240)) for i in range(8)])
    finally:
        cv2.setNumThreads(threads)
    assert all(same(*pair) for pair in zip(*made, strict=True))
