# Copyright (c) mmdet_megdet contributors. All rights reserved.
from .epoch_seed import EpochSeedHook
from .sync_bn_group import SyncBNGroupHook
from .total_batch import TotalBatchHook

__all__ = ['EpochSeedHook', 'SyncBNGroupHook', 'TotalBatchHook']
