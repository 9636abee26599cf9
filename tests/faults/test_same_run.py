# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What ranks compare; that they refuse is in distributed/test_data_faults."""

from __future__ import annotations

from unittest.mock import Mock, call

from mmengine.config import Config

from mmdet_megdet.faults.same_run import check_same_run, settings


def test_settings_are_by_name_and_without_places():
    cfg = dict(
        model=dict(depth=50, stages=[1, (2, 3)], empty={}),
        train_dataloader=dict(dataset=dict(data_root='/a', ann_file='b')),
        work_dir='c',
        load_from=None,
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


def test_joins_as_the_runner_would(monkeypatch):
    """On GPUs nobody has made the process group yet."""
    calls = Mock()
    same_run = 'mmdet_megdet.faults.same_run'
    for name in ('set_multi_processing', 'init_dist'):
        monkeypatch.setattr(f'{same_run}.{name}', getattr(calls, name))
    env_cfg = dict(
        mp_cfg=dict(mp_start_method='fork'),
        dist_cfg=dict(backend='nccl', timeout=5),
    )
    check_same_run(Config(dict(launcher='pytorch', env_cfg=env_cfg)))
    # One process is the same as itself.
    check_same_run(Config(dict(launcher='none')))
    assert calls.mock_calls == [
        call.set_multi_processing(mp_start_method='fork', distributed=True),
        call.init_dist('pytorch', backend='nccl', timeout=5),
    ]
