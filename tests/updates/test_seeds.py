# Copyright (c) mmdet_megdet contributors. All rights reserved.
import itertools
import random

import numpy as np
import torch

from mmdet_megdet.updates.seeds import generators_kept, seed_generators


def draw():
    """One number of each global generator."""
    return (
        random.random(),
        float(np.random.rand()),
        int(torch.randint(2**62, ())),
    )


def test_streams_repeat_and_never_coincide():
    words = [
        words
        for length in (1, 2, 3, 4)
        for words in itertools.product(range(3), repeat=length)
    ]
    seen = []
    for where in words:
        seed_generators(*where)
        numbers = draw()
        seed_generators(*where, devices=False)
        assert draw() == numbers
        seen.append(numbers)
    for stream in zip(*seen, strict=True):
        assert len(set(stream)) == len(words) == 3 + 9 + 27 + 81


def test_generators_are_put_back():
    seed_generators(5)
    expected = draw()
    seed_generators(5)
    try:
        with generators_kept():
            draw()
            raise KeyError
    except KeyError:
        pass
    assert draw() == expected
