# Copyright (c) mmdet_megdet contributors. All rights reserved.
# Four epochs of eight iterations on one rank, of four on two: a whole number
# of updates either way.
custom_imports = dict(imports=['tests.data.tiny_task'])
default_scope = 'mmengine'
model = dict(type='TinyRegressor', norm_cfg=dict(type='MegDetSyncBN'))
train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    dataset=dict(type='TinyImages', length=32, augment=True),
    sampler=dict(type='DefaultSampler', shuffle=True),
    collate_fn=dict(type='default_collate'),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    dataset=dict(type='TinyImages', length=6),
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='default_collate'),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='TinyError')
test_evaluator = val_evaluator
train_cfg = dict(by_epoch=True, max_epochs=4, val_interval=1)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(
    optimizer=dict(type='SGD', lr=0.05, momentum=0.9), accumulative_counts=2
)
param_scheduler = [
    dict(type='PreciseLinearWarmup', start_factor=0.1, end=10),
    # `end` is said, or the Runner takes max_epochs, and a run that stops early
    # by a smaller max_epochs would carry that into its continuation.
    dict(type='MultiStepLR', end=4, milestones=[3], gamma=0.1),
]
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=1),
    checkpoint=dict(
        type='CheckpointHook',
        interval=1,
        max_keep_ckpts=3,
        save_best='error',
        rule='less',
    ),
)
randomness = dict(seed=7)
env_cfg = dict(
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl', timeout=120),
)
