# The recipe for RetinaNet with EfficientNet-B3, as mmdet's
# efficientnet/retinanet_effb3_fpn_8xb4-crop896-1x_coco.py has the model;
# images, batch and schedule are the recipe's.
_base_ = './retinanet_r50_fpn_256bs.py'

norm_cfg = _base_.norm_cfg
checkpoint = 'https://download.openmmlab.com/mmclassification/v0/efficientnet/efficientnet-b3_3rdparty_8xb32-aa_in1k_20220119-5b4887a0.pth'

model = dict(
    backbone=dict(
        _delete_=True,
        type='EfficientNet',
        arch='b3',
        drop_path_rate=0.2,
        out_indices=(3, 4, 5),
        # None; this backbone counts them from 0.
        frozen_stages=0,
        # The weights come from TensorFlow, where BatchNorm has epsilon 1e-3
        # and momentum 0.99. That is the share of the old running statistics;
        # PyTorch's momentum is the share of the new batch, 1 - 0.99.
        norm_cfg=dict(norm_cfg, eps=1e-3, momentum=0.01),
        norm_eval=False,
        init_cfg=dict(
            type='Pretrained', prefix='backbone', checkpoint=checkpoint
        ),
    ),
    neck=dict(
        in_channels=[48, 136, 384],
        start_level=0,
        relu_before_extra_convs=True,
        no_norm_on_lateral=True,
    ),
    # Convolutions shared over the five levels, with norm layers for each.
    # Every rank calls all of them, so they may synchronise.
    bbox_head=dict(type='RetinaSepBNHead', num_ins=5, norm_cfg=norm_cfg),
    train_cfg=dict(assigner=dict(neg_iou_thr=0.5)),
)
