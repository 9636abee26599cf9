# r50_fpn_256bs.py in mixed precision: less memory, faster on tensor cores.
# MegDetSyncBN takes its statistics in float32 or wider all the same, and its
# collectives are in float64.
_base_ = './r50_fpn_256bs.py'

# float16, since mmcv 2.1.0's RoIAlign has no kernel for bfloat16; hence the
# loss scale, which halves where gradients overflow.
optim_wrapper = dict(
    type='AmpOptimWrapper', dtype='float16', loss_scale='dynamic'
)
