# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What cannot be is refused on both ranks alike."""

import pytest
from mmengine.config import Config

from mmdet_megdet.errors import CheckpointError, ConfigError
from tests.data.tiny_run import tiny_config, train
from tests.distributed.ranks import run_ranks
from tools.train import check_same_start

NO_TOTAL = dict(images=2, default_hooks__total_batch=None)


def of(bn_size):
    return NO_TOTAL | dict(model__norm_cfg__bn_size=bn_size)


# Settings of rank 0, of rank 1, and what both are told.
REFUSED = [
    (dict(images=2), dict(images=4),
     'images per GPU is 2 on rank 0 and 4 on rank 1. Start all'),
    (dict(images=3), dict(images=3),
     '2 GPU(s) x 3 image(s) per GPU = 6 at once'),
    (of(6), of(6), 'bn_size=6 cannot be had from 2 rank(s) with 2 image(s)'),
    (of(2), of(None),
     'bn_size of the layers is [2] on rank 0 and [None] on rank 1'),
]  # fmt: skip


def refusals(rank, world_size, work_dir):
    found = []
    for *settings, _ in REFUSED:
        cfg = tiny_config(work_dir, 16, log_level='ERROR', **settings[rank])
        with pytest.raises(ConfigError) as error:
            train(cfg)
        found.append(str(error.value))
    # Where nothing is resumed the ranks may differ.
    check_same_start(Config(dict(load_from=f'{rank}.pth')))
    with pytest.raises(CheckpointError) as error:
        check_same_start(Config(dict(load_from='a.pth', resume=rank == 0)))
    return found, str(error.value)


def test_what_cannot_be_stops_every_rank(tmp_path):
    (found, checkpoint), other = run_ranks(refusals, 2, tmp_path)
    assert (found, checkpoint) == other
    for (*_, said), text in zip(REFUSED, found, strict=True):
        assert said in text
    assert 'is a.pth on rank 0 and none on rank 1' in checkpoint
