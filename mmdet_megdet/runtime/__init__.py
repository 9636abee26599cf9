# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Today's torch under stock MMEngine: model wrapper, launching, loading."""

from .batch import image_names
from .config import (
    adapt_config,
    check_auto_scale_lr,
    check_warmup_ends,
    each_config,
)
from .config_text import read_config
from .ddp import MegDetDistributedDataParallel
from .launch import init_distributed
from .safe_loading import NUMPY_TYPE_CODES, trust_checkpoints
from .workers import hold_workers

__all__ = [
    'NUMPY_TYPE_CODES',
    'MegDetDistributedDataParallel',
    'adapt_config',
    'check_auto_scale_lr',
    'check_warmup_ends',
    'each_config',
    'hold_workers',
    'image_names',
    'init_distributed',
    'read_config',
    'trust_checkpoints',
]
