# r50_fpn_256bs.py with ResNeXt-101 64x4d, as mmdet's
# cascade_rcnn/cascade-mask-rcnn_x101-64x4d_fpn_1x_coco.py has it, and a longer
# warm-up.
_base_ = './r50_fpn_256bs.py'

model = dict(
    backbone=dict(
        type='ResNeXt',
        depth=101,
        groups=64,
        base_width=4,
        init_cfg=dict(
            type='Pretrained', checkpoint='open-mmlab://resnext101_64x4d'
        ),
    )
)

warmup, *milestones = _base_.param_scheduler
param_scheduler = [dict(warmup, end=1500), *milestones]
