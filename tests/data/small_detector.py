# Copyright (c) mmdet_megdet contributors. All rights reserved.
# A region proposal network of a few thousand weights, whose loss is a plain
# mean over images: all anchors are sampled, none is ignored, and every
# picture has a positive one (without any, mmdet counts one more), so pictures
# of a size count alike. Nothing is drawn at random or averaged over the world.
# Eight images an update.
custom_imports = dict(
    imports=['mmdet_megdet', 'tests.data.block_sampler'],
    allow_failed_imports=False,
)
default_scope = 'mmdet'

norm_cfg = dict(type='MegDetSyncBN', requires_grad=True)
model = dict(
    type='RPN',
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
        out_indices=(1, 2, 3),
        frozen_stages=-1,
        norm_cfg=norm_cfg,
        norm_eval=False,
        init_cfg=None,
    ),
    neck=dict(
        type='FPN',
        in_channels=[16, 32, 64],
        out_channels=8,
        num_outs=3,
        norm_cfg=norm_cfg,
    ),
    rpn_head=dict(
        type='RPNHead',
        in_channels=8,
        feat_channels=8,
        anchor_generator=dict(
            type='AnchorGenerator', scales=[3], ratios=[1.0],
            strides=[8, 16, 32],
        ),
        bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
        # mmdet's cross entropy computes in float32 whatever its input.
        loss_cls=dict(type='FocalLoss', use_sigmoid=True),
        loss_bbox=dict(type='SmoothL1Loss', beta=1.0 / 9.0),
    ),
    train_cfg=dict(
        rpn=dict(
            assigner=dict(
                type='MaxIoUAssigner',
                pos_iou_thr=0.5,
                neg_iou_thr=0.5,
                min_pos_iou=0.0,
                match_low_quality=True,
                ignore_iof_thr=-1,
            ),
            sampler=dict(
                type='RandomSampler', num=1_000_000, pos_fraction=1.0,
                add_gt_as_proposals=False,
            ),
            allowed_border=-1,
            pos_weight=-1,
            debug=False,
        )
    ),
    test_cfg=dict(
        rpn=dict(nms_pre=50, max_per_img=20, min_bbox_size=0,
                 nms=dict(type='nms', iou_threshold=0.7))
    ),
)  # fmt: skip

train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type='BlockSampler', batch_size=8),
    dataset=dict(
        type='CocoDataset',
        metainfo=dict(
            classes=('circle', 'square', 'triangle', 'star', 'ring')
        ),
        ann_file='annotations/instances_train.json',
        data_prefix=dict(img='images/train/'),
        filter_cfg=dict(filter_empty_gt=True),
        indices=24,
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(type='PackDetInputs'),
        ],
    ),
)
train_cfg = dict(by_epoch=True, max_epochs=1)
optim_wrapper = dict(
    optimizer=dict(type='SGD', lr=0.05, momentum=0.9, weight_decay=0.001)
)
param_scheduler = [
    dict(type='PreciseLinearWarmup', start_factor=0.1, begin=0, end=2)
]
default_hooks = dict(
    logger=None,
    checkpoint=None,
    total_batch=dict(type='TotalBatchHook', total_batch_size=8),
    sync_bn_group=dict(type='SyncBNGroupHook'),
)
model_wrapper_cfg = dict(type='MegDetDistributedDataParallel')
randomness = dict(seed=0)
log_level = 'ERROR'
