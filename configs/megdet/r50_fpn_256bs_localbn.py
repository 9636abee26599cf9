# r50_fpn_256bs.py without synchronisation, for GPUs with a slow connection:
# each takes the statistics of its own 4 images (with --images-per-gpu N, also
# --bn-size N). Running statistics are pooled over the GPUs before validation
# and checkpoints all the same. Statistics of few images are noisy, hence the
# tighter clip.
_base_ = './r50_fpn_256bs.py'

norm_cfg = dict(bn_size=4)
model = dict(backbone=dict(norm_cfg=norm_cfg), neck=dict(norm_cfg=norm_cfg))

optim_wrapper = dict(clip_grad=dict(max_norm=10))
