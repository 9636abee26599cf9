# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest

from mmdet_megdet.recipe import MachinesError, images_by_machines


@pytest.mark.parametrize(
    ('machines', 'options', 'images'),
    [
        (range(1, 3), (8, 4, 256, [32]), {1: 4, 2: 4}),
        (range(4, 5), (8, 2, 256, [32, 16]), {4: 2}),
        # 8 do not divide 32 images over 8 GPUs, 4 do.
        (range(1, 3), (4, 8, 32, [4], True), {1: 4, 2: 4}),
        (range(1, 3), (8, 12, 256, [32], True), {1: 8, 2: 8}),
        # One of the sizes asks for fewer than the other.
        (range(1, 2), (8, 16, 256, [16, 8], True), {1: 8}),
    ],
)
def test_examples(machines, options, images):
    assert images_by_machines(machines, *options) == images


@pytest.mark.parametrize(
    ('options', 'messages'),
    [
        (
            (range(1, 5), 8, 4, 256, [32]),
            [
                'NNODES=1:4 with 8 GPU(s) each',
                '3 machine(s): 24 GPU(s) x 4 image(s) per GPU = 96 at once '
                'do not divide a total batch of 256',
                'What would run: NNODES=1:2; or NNODES=4:4; or see '
                'tools/plan.py.',
            ],
        ),
        (
            (range(1, 3), 4, 8, 32, [16]),
            [
                '2 machine(s): 8 GPU(s) x 8 image(s) per GPU = 64 at once '
                'are more than a total batch of 32',
                'What would run: --max-images-per-gpu 8 (in the place of '
                '--images-per-gpu), which takes fewer where so many do not '
                'divide; or NNODES=1:1; or',
            ],
        ),
        (
            (range(1, 2), 2, 8, 32, [32], True),
            [
                '1 machine(s): 2 GPU(s) x 8 image(s) per GPU = 16 at once '
                'cannot give a BN size of 32',
                'What would run: see tools/plan.py.',
            ],
        ),
    ],
)
def test_all_that_cannot_run_are_named(options, messages):
    with pytest.raises(MachinesError) as error:
        images_by_machines(*options)
    for message in messages:
        assert message in str(error.value)
