# Copyright (c) mmdet_megdet contributors. All rights reserved.
from .epoch_seed import EpochSeedHook

__all__ = ['EpochSeedHook']
