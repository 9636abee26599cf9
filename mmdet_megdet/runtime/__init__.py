# Copyright (c) mmdet_megdet contributors. All rights reserved.
from .checkpoint import CheckpointError, trust_checkpoints
from .config import ConfigError, adapt_config, check_auto_scale_lr
from .ddp import MegDetDistributedDataParallel
from .launch import LaunchError, init_distributed

__all__ = [
    'CheckpointError',
    'ConfigError',
    'LaunchError',
    'MegDetDistributedDataParallel',
    'adapt_config',
    'check_auto_scale_lr',
    'init_distributed',
    'trust_checkpoints',
]
