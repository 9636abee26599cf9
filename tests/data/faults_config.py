# Copyright (c) mmdet_megdet contributors. All rights reserved.
# The tiny run with what makes it survive: three epochs of four iterations on
# two ranks, two updates each. Nothing is augmented, so that a run which goes
# on where it stopped ends with the very weights of one that did not.
_base_ = './tiny_config.py'

custom_imports = dict(
    imports=['tests.data.tiny_task', 'tests.data.faulty_task'],
    allow_failed_imports=False,
)
train_dataloader = dict(dataset=dict(augment=False))
train_cfg = dict(
    _delete_=True, type='ResumableTrainLoop', max_epochs=3, val_interval=1
)
default_hooks = dict(
    checkpoint=dict(type='AtomicCheckpointHook'),
    sync_bn_group=dict(type='SyncBNGroupHook'),
    rank_watch=dict(type='RankWatchHook'),
    preemption=dict(type='PreemptionHook'),
    diary=dict(type='DiaryHook'),
    fault=dict(type='FaultHook'),
)
env_cfg = dict(dist_cfg=dict(timeout=12))
