# What a run needs besides the model, the data and the schedule.
_base_ = 'mmdet::_base_/default_runtime.py'

custom_imports = dict(imports=['mmdet_megdet'], allow_failed_imports=False)

# Named keys in default_hooks: a child config that sets custom_hooks replaces
# that list, and would lose a hook that stood there.
default_hooks = dict(
    # In updates, of which each is several micro-steps.
    logger=dict(interval=10),
    # Makes the layers' bn_size hold, and pools running statistics.
    sync_bn_group=dict(type='SyncBNGroupHook'),
    # Tells whether they do, in the log, the vis backends and bn_stats.jsonl.
    bn_stats=dict(type='BNStatsMonitorHook', interval=20),
    # A checkpoint is whole or not there; the oldest goes last.
    checkpoint=dict(type='AtomicCheckpointHook'),
    # What it holds can be read back.
    readable_checkpoint=dict(type='ReadableCheckpointHook'),
    # Where the config has changed, --resume says what is taken from where.
    resume_report=dict(type='ResumeReportHook'),
    # When ranks stop moving, every log says which one and in which step.
    rank_watch=dict(type='RankWatchHook'),
    # On SIGTERM all ranks stop together, with a checkpoint.
    preemption=dict(type='PreemptionHook'),
    # Ranks with other versions or configs are refused.
    same_run=dict(type='SameRunHook'),
    # An image or annotation at fault is an error that names it.
    data_check=dict(type='DataCheckHook'),
    # On a loss of NaN or infinity all ranks stop, ahead of the update.
    finite_loss=dict(type='FiniteLossHook'),
    # Says with how many images per GPU the batch would fit.
    out_of_memory=dict(type='OutOfMemoryHook'),
)

log_processor = dict(window_size=10)

# DDP on GPUs and CPUs alike. Buffers are not broadcast from rank 0.
model_wrapper_cfg = dict(type='MegDetDistributedDataParallel')
