# Real microscope photographs of blood cells (BCCD: 205 train, 87 val, three
# classes) at 320x240, 8 images an update (2 ranks x 4), from scratch.
# BCCD_ROOT tells where the COCO-format data set lies.
_base_ = [
    'mmdet::_base_/models/faster-rcnn_r50_fpn.py',
    'mmdet::_base_/datasets/coco_detection.py',
    './_base_/runtime.py',
]

norm_cfg = dict(type='MegDetSyncBN', requires_grad=True)

model = dict(
    backbone=dict(
        depth=18,
        norm_cfg=norm_cfg,
        norm_eval=False,
        frozen_stages=-1,
        init_cfg=None,
    ),
    neck=dict(
        in_channels=[64, 128, 256, 512], out_channels=64, norm_cfg=norm_cfg
    ),
    rpn_head=dict(in_channels=64, feat_channels=64),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64),
        bbox_head=dict(in_channels=64, fc_out_channels=256, num_classes=3),
    ),
)

data_root = '{{$BCCD_ROOT:data/bccd}}/'
metainfo = dict(
    classes=('WBC', 'RBC', 'Platelets'),
    palette=[(220, 20, 60), (0, 120, 200), (60, 180, 75)],
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(320, 240), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(320, 240), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs'),
]

train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    batch_sampler=dict(type='UpdateBatchSampler'),
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        ann_file='annotations/instances_train.json',
        data_prefix=dict(img='images/'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    num_workers=1,
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        ann_file='annotations/instances_val.json',
        data_prefix=dict(img='images/'),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/instances_val.json')
test_evaluator = val_evaluator

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=0.0001),
    clip_grad=dict(max_norm=35, norm_type=2),
)
# 25 updates an epoch.
param_scheduler = [
    dict(type='PreciseLinearWarmup', by_epoch=False, begin=0, end=50),
    dict(
        type='MultiStepLR',
        begin=0,
        end=12,
        by_epoch=True,
        milestones=[8, 11],
        gamma=0.1,
    ),
]
train_cfg = dict(type='UpdateTrainLoop', max_epochs=12, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

default_hooks = dict(
    total_batch=dict(type='TotalBatchHook', total_batch_size=8),
    logger=dict(interval=5),
    checkpoint=dict(max_keep_ckpts=2),
    bn_stats=dict(interval=20),
)
randomness = dict(seed=0)
