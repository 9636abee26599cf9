# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What ranks compare; that they refuse is in distributed/test_data_faults."""

from __future__ import annotations

from mmengine.config import Config

from mmdet_megdet.faults import check_same_run, settings


def test_settings_are_by_name_and_without_places():
    cfg = dict(
        model=dict(depth=50, stages=[1, (2, 3)], empty={}),
        train_dataloader=dict(dataset=dict(data_root='/a', ann_file='b')),
        work_dir='c',
        load_from=None,
    )
    assert settings(cfg) == {
        'model.depth': '50',
        'model.stages.0': '1',
        'model.stages.1.0': '2',
        'model.stages.1.1': '3',
        'model.empty': '{}',
    }


def test_objects_are_the_same_on_every_rank():
    """Their address is not."""
    text = settings(dict(f=test_settings_are_by_name_and_without_places))['f']
    assert 'test_settings_are_by_name' in text
    assert '0x' not in text


def test_joins_as_the_runner_would(monkeypatch):
    """On GPUs nobody has made the process group yet."""
    calls = []
    monkeypatch.setattr(
        'mmdet_megdet.faults.same_run.set_multi_processing',
        lambda **options: calls.append(options),
    )
    monkeypatch.setattr(
        'mmdet_megdet.faults.same_run.init_dist',
        lambda *args, **options: calls.append((args, options)),
    )
    env_cfg = dict(
        mp_cfg=dict(mp_start_method='fork'),
        dist_cfg=dict(backend='nccl', timeout=5),
    )
    check_same_run(Config(dict(launcher='pytorch', env_cfg=env_cfg)))
    assert calls == [
        dict(mp_start_method='fork', distributed=True),
        (('pytorch',), dict(backend='nccl', timeout=5)),
    ]
    # One process is the same as itself.
    check_same_run(Config(dict(launcher='none')))
    assert len(calls) == 2
