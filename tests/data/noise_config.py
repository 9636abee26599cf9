# Copyright (c) mmdet_megdet contributors. All rights reserved.
# The mean of 96 points: 12 updates of 8 an epoch.
custom_imports = dict(
    imports=['mmdet_megdet', 'tests.data.noise_task'],
    allow_failed_imports=False,
)
default_scope = 'mmengine'
model = dict(type='MeanFinder')
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    dataset=dict(type='Points', length=96),
    sampler=dict(type='DefaultSampler', shuffle=True),
    batch_sampler=dict(type='UpdateBatchSampler'),
    collate_fn=dict(type='default_collate'),
)
train_cfg = dict(type='UpdateTrainLoop', max_epochs=1)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1, momentum=0.9))
default_hooks = dict(
    sync_bn_group=dict(type='SyncBNGroupHook'),
    total_batch=dict(type='TotalBatchHook', total_batch_size=8),
    grad_noise=dict(type='GradientNoiseHook', interval=1),
    checkpoint=dict(type='CheckpointHook', interval=-1, save_last=False),
)
env_cfg = dict(
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl', timeout=120),
)
randomness = dict(seed=0)
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='Visualizer', vis_backends=vis_backends)
