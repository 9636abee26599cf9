# r50_fpn_256bs.py with a warm-up along half a cosine wave: as long as the
# linear one, gentler at both ends and steeper in the middle.
_base_ = './r50_fpn_256bs.py'

warmup, *milestones = _base_.param_scheduler
param_scheduler = [dict(warmup, type='PreciseCosineWarmup'), *milestones]
