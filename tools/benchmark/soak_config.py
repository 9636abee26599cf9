# Copyright (c) mmdet_megdet contributors. All rights reserved.
# What soak.py trains, on two ranks; it sets what depends on their number, the
# epochs and the seed. The hooks are those of every config here.
_base_ = '../../configs/megdet/_base_/runtime.py'

custom_imports = dict(
    imports=['mmdet_megdet', 'soak_task'], allow_failed_imports=False
)
images_per_gpu = 4
model = dict(type='SoakRegressor', images_per_gpu=images_per_gpu)
train_dataloader = dict(
    num_workers=1,
    batch_size=images_per_gpu,
    # 100 updates an epoch.
    dataset=dict(type='SoakImages', length=1600),
    sampler=dict(type='DefaultSampler', shuffle=True),
    batch_sampler=dict(type='UnevenBatchSampler'),
    collate_fn=dict(type='soak_collate'),
)
train_cfg = dict(type='UpdateTrainLoop', max_epochs=1)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=1e-4),
)
param_scheduler = [
    dict(type='PreciseLinearWarmup', start_factor=0.1, begin=0, end=200)
]
default_hooks = dict(
    checkpoint=dict(max_keep_ckpts=2),
    # Its advice on speed is for models that have something to compute.
    bn_stats=dict(max_collective_share=1.0),
    total_batch=dict(type='TotalBatchHook', total_batch_size=16),
    soak=dict(type='SoakHook'),
)
# torch orders DDP's buckets anew after a process's first iteration. With more
# than two ranks the order of summation would follow; this keeps it.
find_unused_parameters = True
env_cfg = dict(
    cudnn_benchmark=False, dist_cfg=dict(backend='nccl', timeout=30)
)
