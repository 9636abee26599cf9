# What a run needs besides the model, the data and the schedule.
_base_ = './faults.py'

default_hooks = dict(
    # In updates, of which each is several micro-steps.
    logger=dict(interval=10),
    # Makes the layers' bn_size hold, and pools running statistics.
    sync_bn_group=dict(type='SyncBNGroupHook'),
    # Tells whether they do, in the log, the vis backends and bn_stats.jsonl.
    bn_stats=dict(type='BNStatsMonitorHook', interval=20),
)

log_processor = dict(window_size=10)

# DDP on GPUs and CPUs alike. Buffers are not broadcast from rank 0.
model_wrapper_cfg = dict(type='MegDetDistributedDataParallel')
