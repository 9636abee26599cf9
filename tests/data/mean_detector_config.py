# Copyright (c) mmdet_megdet contributors. All rights reserved.
# Eight images an update, BN units of four, three updates an epoch; schedulers
# and averaged weights are stock.
custom_imports = dict(
    imports=['mmdet_megdet', 'tests.data.mean_detector'],
    allow_failed_imports=False,
)
default_scope = 'mmdet'

norm_cfg = dict(type='MegDetSyncBN', bn_size=4)
model = dict(
    type='SingleStageDetector',
    data_preprocessor=dict(
        type='DoublePreprocessor',
        mean=[110.0, 110.0, 110.0],
        std=[60.0, 60.0, 60.0],
        pad_size_divisor=32,
    ),
    backbone=dict(
        type='ResNet',
        depth=18,
        base_channels=8,
        stem_channels=8,
        num_stages=2,
        strides=(1, 2),
        dilations=(1, 1),
        out_indices=(0, 1),
        frozen_stages=-1,
        norm_cfg=norm_cfg,
        norm_eval=False,
        init_cfg=None,
    ),
    neck=dict(
        type='FPN',
        in_channels=[8, 16],
        out_channels=8,
        num_outs=2,
    ),
    bbox_head=dict(type='MeanHead', in_channels=8, strides=[4, 8]),
)

train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    batch_sampler=dict(type='UpdateBatchSampler'),
    dataset=dict(
        type='CocoDataset',
        metainfo=dict(
            classes=('circle', 'square', 'triangle', 'star', 'ring')
        ),
        ann_file='annotations/instances_train.json',
        data_prefix=dict(img='images/train/'),
        filter_cfg=dict(filter_empty_gt=True),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(type='PhotoMetricDistortion'),
            dict(
                type='RandomFlip',
                prob=[0.3, 0.3],
                direction=['horizontal', 'vertical'],
            ),
            dict(type='PackDetInputs'),
        ],
    ),
)
train_cfg = dict(type='UpdateTrainLoop', max_updates=30)
optim_wrapper = dict(
    optimizer=dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=0.001),
    clip_grad=dict(max_norm=3),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=5),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=5, end=30, T_max=25),
]
default_hooks = dict(
    logger=None,
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=10),
    total_batch=dict(type='TotalBatchHook', total_batch_size=8),
    sync_bn_group=dict(type='SyncBNGroupHook'),
)
custom_hooks = [
    dict(type='EMAHook', ema_type='ExponentialMovingAverage', momentum=0.1)
]
model_wrapper_cfg = dict(type='MegDetDistributedDataParallel')
randomness = dict(seed=0)
log_level = 'ERROR'
