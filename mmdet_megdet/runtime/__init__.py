# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Today's torch under stock MMEngine: model wrapper, launching, loading."""

from .batch import images_per_gpu
from .config import adapt_config, check_auto_scale_lr
from .ddp import MegDetDistributedDataParallel
from .launch import init_distributed
from .safe_loading import trust_checkpoints

__all__ = [
    'MegDetDistributedDataParallel',
    'adapt_config',
    'check_auto_scale_lr',
    'images_per_gpu',
    'init_distributed',
    'trust_checkpoints',
]
