# Copyright (c) mmdet_megdet contributors. All rights reserved.
from mmdet_megdet.recipe import (
    BatchPlan,
    format_table,
    plan_rows,
    warmup_text,
)


def test_rows_and_columns():
    plans = [BatchPlan(8, 4, bn_size=32), BatchPlan(8, 32, bn_size=32)]
    columns = [
        plan_rows(plan, iterations)
        for plan, iterations in zip(plans, (3665, 458), strict=True)
    ]
    assert format_table(columns).splitlines() == [
        'GPUs               8                8',
        'images per GPU     4                32',
        'images at once     32               256',
        'accumulation       8 iterations     1 iteration',
        'total batch        256 images       256 images',
        'BN statistics      32 images        32 images',
        'BN groups          1 x 8 GPUs       BN is local',
        'epoch              3665 iterations  458 iterations',
        'updates per epoch  458 + 1/8        458',
    ]


def test_without_epochs_and_several_groups():
    rows = plan_rows(BatchPlan(128, 2, bn_size=32))
    assert rows['BN groups'] == '8 x 16 GPUs'
    assert 'epoch' not in rows
    rows = plan_rows(BatchPlan(128, 2))
    assert rows['BN statistics'] == '256 images'
    assert rows['BN groups'] == '1 x 128 GPUs'


def test_warmup_text():
    assert warmup_text(1000, 8000) == '1000 updates = 8000 iterations'
    assert warmup_text(1001 / 8, 1001) == '125.125 updates = 1001 iterations'
