# The baseline to compare r50_fpn_256bs.py with: 16 images an update (8 GPUs x
# 2) and the learning rate 0.02 that is usual for them. BatchNorm takes all 16,
# since 32 are never there at once; all else is the same.
_base_ = './r50_fpn_256bs.py'

train_dataloader = dict(batch_size=2)
default_hooks = dict(total_batch=dict(total_batch_size=16))
optim_wrapper = dict(optimizer=dict(lr=0.02))

norm_cfg = dict(bn_size=16)
model = dict(backbone=dict(norm_cfg=norm_cfg), neck=dict(norm_cfg=norm_cfg))
