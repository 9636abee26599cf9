# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What is refused is refused on both ranks alike."""

from __future__ import annotations

import os

import pytest

from mmdet_megdet.errors import ConfigError
from tests.data.tiny_run import train_tiny, update_config
from tests.distributed.ranks import run_ranks


def refusal(rank, world_size, work_dir, images):
    os.environ['LOCAL_RANK'] = str(rank)
    cfg = update_config(work_dir, 16, images[rank], launcher='pytorch')
    with pytest.raises(ConfigError) as error:
        train_tiny(cfg)
    return str(error.value)


@pytest.mark.parametrize(
    ('images', 'said'),
    [
        ([2, 4], 'images per GPU is 2 on rank 0 and 4 on rank 1. Start all'),
        ([3, 3], '2 GPU(s) x 3 image(s) per GPU = 6 at once'),
    ],
)
def test_what_does_not_divide_stops_every_rank(tmp_path, images, said):
    first, second = run_ranks(refusal, 2, tmp_path, images)
    assert first == second
    assert said in first
