# What a run needs besides the model, the data and the schedule.
_base_ = 'mmdet::_base_/default_runtime.py'

custom_imports = dict(imports=['mmdet_megdet'], allow_failed_imports=False)

# Named keys in default_hooks: a child config that sets custom_hooks replaces
# that list, and would lose a hook that stood there.
default_hooks = dict(
    # Generators are reseeded by (seed, epoch, rank), so that a resumed run
    # draws what an uninterrupted one would have drawn.
    epoch_seed=dict(type='EpochSeedHook'),
    # Makes the layers' bn_size hold, and pools running statistics.
    sync_bn_group=dict(type='SyncBNGroupHook'),
)

# DDP on GPUs and CPUs alike. Buffers are not broadcast from rank 0.
model_wrapper_cfg = dict(type='MegDetDistributedDataParallel')
