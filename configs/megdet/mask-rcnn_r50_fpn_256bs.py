# The recipe of r50_fpn_256bs.py for Mask R-CNN.
_base_ = [
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    './_base_/coco_instance.py',
    './_base_/recipe_256bs.py',
]

# Statistics over 32 images: 8 GPUs x 4.
norm_cfg = dict(type='MegDetSyncBN', requires_grad=True, bn_size=32)

model = dict(
    backbone=dict(norm_cfg=norm_cfg, norm_eval=False, frozen_stages=-1),
    neck=dict(norm_cfg=norm_cfg),
)
