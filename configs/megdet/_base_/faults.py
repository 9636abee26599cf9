# What handles faults in a long training, each by a hook; docs/faults.md says
# what each of them does. It takes the place of mmdet's default_runtime.py.
_base_ = 'mmdet::_base_/default_runtime.py'

custom_imports = dict(imports=['mmdet_megdet'], allow_failed_imports=False)

# Named keys in default_hooks: a child config that sets custom_hooks replaces
# that list, and would lose a hook that stood there.
default_hooks = dict(
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
