# r50_fpn_256bs.py with a warm-up in two stages, for data sets of small objects
# whose first updates are unstable: 500 updates at a hundredth of the learning
# rate, then 500 up to it.
_base_ = './r50_fpn_256bs.py'

warmup, *milestones = _base_.param_scheduler
param_scheduler = [
    dict(warmup, type='PreciseTwoStageWarmup', start_factor=0.01, hold=500),
    *milestones,
]
