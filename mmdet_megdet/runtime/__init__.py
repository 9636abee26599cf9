# Copyright (c) mmdet_megdet contributors. All rights reserved.
from .checkpoint import CheckpointError, trust_checkpoints
from .checkpoint_files import latest_checkpoint
from .config import ConfigError, adapt_config, check_auto_scale_lr
from .ddp import MegDetDistributedDataParallel
from .launch import LaunchError, init_distributed
from .losses import NonFiniteLossError
from .pictures import DataError
from .same_run import check_same_run

__all__ = [
    'CheckpointError',
    'ConfigError',
    'DataError',
    'LaunchError',
    'MegDetDistributedDataParallel',
    'NonFiniteLossError',
    'adapt_config',
    'check_auto_scale_lr',
    'check_same_run',
    'init_distributed',
    'latest_checkpoint',
    'trust_checkpoints',
]
