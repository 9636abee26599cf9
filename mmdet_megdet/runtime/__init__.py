# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Model wrapper, launching and safe loading for stock MMEngine."""

from .config import (
    adapt_config,
    check_lr_scaling,
    check_warmup_ends,
    each_config,
    find_hook,
    read_config,
)
from .dataloader import hold_workers, image_names, images_per_gpu
from .ddp import MegDetDistributedDataParallel
from .launch import export_rank, init_distributed
from .safe_loading import trust_checkpoints

__all__ = [
    'MegDetDistributedDataParallel',
    'adapt_config',
    'check_lr_scaling',
    'check_warmup_ends',
    'each_config',
    'export_rank',
    'find_hook',
    'hold_workers',
    'image_names',
    'images_per_gpu',
    'init_distributed',
    'read_config',
    'trust_checkpoints',
]
