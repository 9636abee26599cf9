# The demo: Mask R-CNN on the generated shapes (128 px, five classes, boxes,
# masks, crowds and images without objects), 8 images an update (2 ranks x
# 4), from scratch. SHAPES_ROOT tells where `python -m
# mmdet_megdet.demo_data` has put them.
_base_ = [
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    'mmdet::_base_/datasets/coco_instance.py',
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
        bbox_head=dict(in_channels=64, fc_out_channels=256, num_classes=5),
        mask_roi_extractor=dict(out_channels=64),
        mask_head=dict(in_channels=64, conv_out_channels=64, num_classes=5),
    ),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=500, max_per_img=250),
        rcnn=dict(sampler=dict(num=64)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=500, max_per_img=250)),
)

data_root = '{{$SHAPES_ROOT:data/shapes}}/'
metainfo = dict(
    classes=('circle', 'square', 'triangle', 'star', 'ring'),
    palette=[
        (215, 50, 45),
        (60, 170, 70),
        (50, 95, 215),
        (235, 200, 40),
        (180, 65, 190),
    ],
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale=(128, 128), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(128, 128), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
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
        data_prefix=dict(img='images/train/'),
        # Images without objects take part.
        filter_cfg=dict(_delete_=True, filter_empty_gt=False),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    num_workers=1,
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        ann_file='annotations/instances_val.json',
        data_prefix=dict(img='images/val/'),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/instances_val.json')
test_evaluator = val_evaluator

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=0.001, weight_decay=0.0001),
    clip_grad=dict(max_norm=35, norm_type=2),
)
# 40 updates an epoch.
param_scheduler = [
    dict(type='PreciseLinearWarmup', by_epoch=False, begin=0, end=40),
    dict(
        type='MultiStepLR',
        begin=0,
        end=4,
        by_epoch=True,
        milestones=[3],
        gamma=0.1,
    ),
]
train_cfg = dict(type='UpdateTrainLoop', max_epochs=4, val_interval=2)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

default_hooks = dict(
    total_batch=dict(type='TotalBatchHook', total_batch_size=8),
    logger=dict(interval=10),
    bn_stats=dict(interval=20),
    checkpoint=dict(interval=2, max_keep_ckpts=2),
    # Where validation draws, every 16th image. (Testing draws all.)
    visualization=dict(interval=16),
)
randomness = dict(seed=0)
