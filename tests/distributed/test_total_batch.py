# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The same batch, updates and learning rates on one rank and on two."""

from __future__ import annotations

import os

import pytest

from mmdet_megdet.errors import ConfigError
from tests.data.tiny_run import log_of, train_tiny, update_config
from tests.distributed.ranks import run_ranks


def train(rank, world_size, work_dir, images, settings, first_images=None):
    os.environ['LOCAL_RANK'] = str(rank)
    if rank == 0 and first_images is not None:
        images = first_images
    cfg = update_config(
        work_dir,
        16,
        images,
        launcher='pytorch',
        train_cfg__max_epochs=4,
        **settings,
    )
    try:
        runner, updates = train_tiny(cfg)
    except ConfigError as error:
        return str(error)
    return dict(
        iterations=updates.iterations, rates=updates.rates, last=runner.iter
    )


@pytest.mark.slow
def test_other_hardware_same_updates(tmp_path):
    """16 images an update: 4 x 4 on one rank, 2 x 4 x 2 on two.

    32 images and four epochs are eight updates, all of them in the warm-up.
    """
    one, two = tmp_path / 'one', tmp_path / 'two'
    (alone,) = run_ranks(train, 1, one, 4, {})
    both = run_ranks(train, 2, two, 4, {})
    assert alone['iterations'] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert both == [alone] * 2
    # Each update its own: the warm-up is 10 updates long, and the last epoch
    # is after a milestone.
    expected = [0.05 * (0.1 + 0.9 * k / 10) for k in range(8)]
    expected[6:] = [rate * 0.1 for rate in expected[6:]]
    # The product of up to three roundings here and in the schedulers each.
    assert alone['rates'] == pytest.approx(expected, rel=6 * 2.0**-53)
    log = log_of(two)
    assert 'accumulation    2 micro-steps' in log
    assert 'BN groups       1 x 2 GPUs' in log

    # The run of one rank goes on on two.
    resume = dict(resume=True, load_from=str(one / 'epoch_2.pth'))
    both = run_ranks(train, 2, tmp_path / 'one_two', 4, resume)
    for rank in both:
        assert rank['iterations'] == [5, 6, 7, 8]
        assert rank['rates'] == alone['rates'][4:]
        assert rank['last'] == 8


def test_ranks_that_differ_all_stop_with_one_message(tmp_path):
    messages = run_ranks(train, 2, tmp_path, 4, {}, 2)
    expected = (
        'TotalBatchHook: ranks differ: images per GPU is 2 on rank 0 and 4 on '
        'rank 1. Start all of them with the same config and options.'
    )
    assert messages == [expected] * 2


def test_what_does_not_divide_stops_every_rank(tmp_path):
    messages = run_ranks(train, 2, tmp_path, 3, {})
    assert len(set(messages)) == 1
    assert '2 GPU(s) x 3 image(s) per GPU = 6 at once' in messages[0]
