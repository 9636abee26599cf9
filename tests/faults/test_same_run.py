# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What ranks compare; that they refuse is in distributed/test_data_faults."""

from __future__ import annotations

from unittest.mock import patch

from mmengine.config import Config

from mmdet_megdet.faults import check_same_run, same_run, settings


def test_settings_are_by_name_and_without_places():
    cfg = dict(
        model=dict(depth=50, stages=[1, (2, 3)], empty={}),
        train_dataloader=dict(dataset=dict(data_root='/a', ann_file='b')),
        work_dir='c',
        # Whose address another rank does not have.
        function=check_same_run,
    )
    assert settings(cfg) == {
        'model.depth': '50',
        'model.stages.0': '1',
        'model.stages.1.0': '2',
        'model.stages.1.1': '3',
        'model.empty': '{}',
        'function': '<function check_same_run>',
    }


def test_joins_as_the_runner_would():
    """On GPUs nobody has made the process group yet."""
    dist_cfg = dict(backend='nccl', timeout=5)
    cfg = dict(launcher='pytorch', env_cfg=dict(dist_cfg=dist_cfg))
    with (
        patch.object(same_run, 'set_multi_processing'),
        patch.object(same_run, 'init_dist') as init_dist,
    ):
        check_same_run(Config(cfg))
        # One process is the same as itself.
        check_same_run(Config(dict(launcher='none')))
    init_dist.assert_called_once_with('pytorch', **dist_cfg)
