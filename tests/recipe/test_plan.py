# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The plan's arithmetic, and what the user is told where it does not divide.

The recipe is MegDet's: 256 images an update, BatchNorm over 32.
"""

import pickle
import subprocess
import sys
from dataclasses import astuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.recipe import BatchPlan, PlanError, most_images
from tests.tools.command import TOOLS

# GPUs, images per GPU: what is told, and the options that would run.
REFUSED = {
    (4, 4): (
        'cannot give a BN size of 32',
        '--images-per-gpu 8',
        '--bn-size 16',
        'on 8 GPU(s)',
    ),
    (6, 2): (
        'do not divide a total batch of 256 (256 = 21 x 12 + 4)',
        'on 16 GPU(s)',
        '--images-per-gpu 8 on 4 GPU(s)',
        '--bn-size 8 on 4 GPU(s)',
        '--bn-size 12 total_batch_size=252',
        '--images-per-gpu 16 total_batch_size=288',
    ),
    (128, 32): (
        'are more than a total batch of 256',
        '--images-per-gpu 2',
        'on 8 GPU(s)',
        'total_batch_size=4096',
    ),
}
POSITIVE, BN_SIZE = st.integers(1, 40), st.none() | st.integers(1, 80)


@pytest.mark.parametrize(('gpus', 'images'), REFUSED)
def test_what_is_refused_and_what_would_run(gpus, images):
    with pytest.raises(PlanError) as refusal:
        BatchPlan(gpus, images, total_batch_size=256, bn_size=32)
    problem, *options = REFUSED[gpus, images]
    asked = f'{gpus} GPU(s) x {images} image(s) per GPU = {gpus * images} at '
    told, would_run = str(refusal.value).split('. Nothing is rounded. ')
    assert f'{asked}once {problem}' in told
    assert would_run == (
        f'What would run, least changed first: {"; or ".join(options)}.'
    )
    # From rank to rank.
    assert str(pickle.loads(pickle.dumps(refusal.value))) == str(refusal.value)


@given(st.tuples(POSITIVE, POSITIVE, st.integers(1, 600), BN_SIZE))
@example((6, 4, 256, 32))
@example((1, 1, 1, 1))
@example((1, 7, 1, 80))
@example((40, 40, 1, None))
def test_all_that_divides_is_planned_and_the_rest_has_ways_out(asked):
    world_size, images, total, bn_size = asked
    possible = [
        number
        for number in range(1, images + 1)
        if total % (world_size * number) == 0
        and bn_size in [None, *group_sizes(world_size, number)]
    ]
    most = most_images(world_size, images, total, [bn_size])
    assert most == max(possible, default=None)
    if images in possible:
        assert_multiplies_out(BatchPlan(*asked))
        return
    with pytest.raises(PlanError) as refusal:
        BatchPlan(*asked)
    nearest = refusal.value.nearest
    # There is always a way: one image on one GPU divides everything.
    assert nearest
    changes = [
        sum(a != b for a, b in zip(asked, astuple(plan), strict=True))
        for plan in nearest
    ]
    assert changes == sorted(changes)
    for plan in nearest:
        assert_multiplies_out(plan)


def group_sizes(world_size, images):
    """Images of consecutive ranks, as many as divide their number."""
    ranks = range(1, world_size + 1)
    return [n * images for n in ranks if world_size % n == 0]


def assert_multiplies_out(plan):
    at_once = plan.world_size * plan.images_per_gpu
    assert plan.images_at_once == at_once
    assert at_once * plan.accumulation == plan.total_batch_size
    sizes = group_sizes(plan.world_size, plan.images_per_gpu)
    assert plan.images_per_bn_group in sizes
    assert plan.images_per_bn_group == (plan.bn_size or at_once)
    ranks = plan.images_per_bn_group // plan.images_per_gpu
    assert plan.ranks_per_bn_group == ranks


@pytest.mark.parametrize(
    'number',
    [
        dict(world_size=0),
        dict(images_per_gpu=2.0),
        dict(total_batch_size='4'),
        dict(bn_size=True),
        dict(bn_size=0),
        dict(bn_size='32'),
    ],
)
def test_a_number_that_is_none(number):
    ((name, value),) = number.items()
    with pytest.raises(ConfigError, match=f'{name}={value!r} must be'):
        BatchPlan(**dict(world_size=8, images_per_gpu=4) | number)


def test_the_standard_library_is_enough():
    """Isolated and without site, where nothing installed is visible."""
    result = subprocess.run(
        [sys.executable, '-I', '-S', TOOLS / 'plan.py', '8x4'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'accumulation    8 micro-steps' in result.stdout
