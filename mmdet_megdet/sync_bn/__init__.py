# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Cross-GPU batch normalisation."""

from .module import MegDetSyncBN

__all__ = ['MegDetSyncBN']
