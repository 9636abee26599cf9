# MegDet's recipe on COCO: Cascade Mask R-CNN, ResNet-50 FPN, 256 images an
# update, 8 GPUs a node, cross-GPU BatchNorm in the backbone and the FPN.
_base_ = [
    'mmdet::_base_/models/cascade-mask-rcnn_r50_fpn.py',
    './_base_/coco_instance.py',
    './_base_/recipe_256bs.py',
]

# Statistics over 32 images: 8 GPUs x 4. On other hardware --bn-size N, or
# --bn-size none for the images of all ranks.
norm_cfg = dict(type='MegDetSyncBN', requires_grad=True, bn_size=32)

model = dict(
    # frozen_stages=-1 and norm_eval=False: a frozen BatchNorm, or one in
    # eval mode, does not synchronise.
    backbone=dict(norm_cfg=norm_cfg, norm_eval=False, frozen_stages=-1),
    # Not in the RoI heads: a rank without RoIs leaves the cascade early, and
    # synchronised layers have to be called by all ranks alike.
    neck=dict(norm_cfg=norm_cfg),
)
