# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What ranks compare; that they refuse is in distributed/test_data_faults."""

from mmdet_megdet.faults.same_run import check_same_run, settings


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
