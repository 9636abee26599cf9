# Copyright (c) mmdet_megdet contributors. All rights reserved.
# Updates of 8 images, all of them one BN unit: on one machine of one rank a
# micro-batch of 8, on two 4 on each. It waits for a second machine ahead of
# updates 5 and 20, and for its end ahead of update 13.
_base_ = './faults_config.py'

custom_imports = dict(
    imports=[
        f'tests.data.{name}_task' for name in ('tiny', 'faulty', 'elastic')
    ]
)
model = dict(norm_cfg=dict(bn_size=8))
train_dataloader = dict(dataset=dict(augment=True, length=32))
train_cfg = dict(
    _delete_=True, type='UpdateTrainLoop', max_updates=30, val_interval=30
)
param_scheduler = [
    dict(type='PreciseLinearWarmup', start_factor=0.1, begin=0, end=10),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=10, end=30),
]
default_hooks = dict(
    total_batch=dict(total_batch_size=8),
    checkpoint=dict(by_epoch=False, interval=5, save_best=None),
    same_run=dict(type='SameRunHook'),
    finite_loss=dict(type='FiniteLossHook'),
    wait=dict(places=[(5, 1), (13, 2), (20, 1)]),
    diary=None,
)
