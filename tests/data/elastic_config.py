# Copyright (c) mmdet_megdet contributors. All rights reserved.
# The tiny run in updates of 8 images, all of them one BN unit: on one machine
# of one rank a micro-batch of 8, on two 4 on each. It waits for a second
# machine ahead of updates 5 and 20, and for its end ahead of update 13.
_base_ = './tiny_config.py'

custom_imports = dict(
    imports=['mmdet_megdet', 'tests.data.tiny_task', 'tests.data.elastic_task']
)
model = dict(norm_cfg=dict(bn_size=8))
train_dataloader = dict(batch_sampler=dict(type='UpdateBatchSampler'))
train_cfg = dict(
    _delete_=True, type='UpdateTrainLoop', max_updates=30, val_interval=30
)
optim_wrapper = dict(
    _delete_=True, optimizer=dict(type='SGD', lr=0.05, momentum=0.9)
)
param_scheduler = [
    dict(type='PreciseLinearWarmup', start_factor=0.1, begin=0, end=10),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=10, end=30),
]
default_hooks = dict(
    total_batch=dict(type='TotalBatchHook', total_batch_size=8),
    sync_bn_group=dict(type='SyncBNGroupHook'),
    checkpoint=dict(
        _delete_=True, type='AtomicCheckpointHook', by_epoch=False, interval=5
    ),
    rank_watch=dict(type='RankWatchHook'),
    preemption=dict(type='PreemptionHook'),
    same_run=dict(type='SameRunHook'),
    finite_loss=dict(type='FiniteLossHook'),
    wait=dict(type='WaitHook', places={5: 1, 13: 2, 20: 1}),
)
