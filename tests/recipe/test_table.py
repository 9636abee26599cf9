# Copyright (c) mmdet_megdet contributors. All rights reserved.
from mmdet_megdet.recipe import BatchPlan, format_table, plan_rows


def test_rows_and_columns():
    plans = [BatchPlan(8, 4, bn_size=32), BatchPlan(8, 32, bn_size=32)]
    columns = [plan_rows(plan, 117266) for plan in plans]
    assert format_table(columns).splitlines() == [
        'GPUs            8                            8',
        'images per GPU  4                            32',
        'images at once  32                           256',
        'accumulation    8 micro-steps                1 micro-step',
        'total batch     256 images                   256 images',
        'BN statistics   32 images                    32 images',
        'BN groups       1 x 8 GPUs                   BN is local',
        'epoch           458 updates, 18 images over  458 updates, 18 images '
        'over',
    ]


def test_without_epochs_and_several_groups():
    rows = plan_rows(BatchPlan(128, 2, bn_size=32))
    assert rows['BN groups'] == '8 x 16 GPUs'
    assert 'epoch' not in rows
    rows = plan_rows(BatchPlan(128, 2))
    assert rows['BN statistics'] == '256 images'
    assert rows['BN groups'] == '1 x 128 GPUs'
