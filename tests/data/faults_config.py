# Copyright (c) mmdet_megdet contributors. All rights reserved.
# The tiny run with what makes it survive: three epochs of four updates of 16
# images, two micro-steps each on two ranks. Nothing is augmented, so that
# images can be told by their targets.
_base_ = './tiny_config.py'

custom_imports = dict(
    imports=['tests.data.tiny_task', 'tests.data.faulty_task']
)
train_dataloader = dict(
    dataset=dict(augment=False, length=64),
    batch_sampler=dict(type='UpdateBatchSampler'),
)
train_cfg = dict(
    _delete_=True, type='UpdateTrainLoop', max_epochs=3, val_interval=1
)
optim_wrapper = dict(
    _delete_=True, optimizer=dict(type='SGD', lr=0.05, momentum=0.9)
)
default_hooks = dict(
    total_batch=dict(type='TotalBatchHook', total_batch_size=16),
    checkpoint=dict(type='AtomicCheckpointHook'),
    sync_bn_group=dict(type='SyncBNGroupHook'),
    rank_watch=dict(type='RankWatchHook'),
    preemption=dict(type='PreemptionHook'),
    diary=dict(type='DiaryHook'),
    fault=dict(type='FaultHook'),
    wait=dict(type='WaitHook', places=[]),
)
env_cfg = dict(dist_cfg=dict(timeout=120))
