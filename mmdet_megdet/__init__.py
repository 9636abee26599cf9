# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""MegDet's large-batch recipe for stock MMDetection 3.x.

Importing the package registers its components in MMEngine's root registries
and lets checkpoints of MMEngine pass torch's safe loading.
"""

from . import hooks, recipe, runtime, schedulers, sync_bn
from .version import __version__

__all__ = [
    '__version__',
    'hooks',
    'recipe',
    'runtime',
    'schedulers',
    'sync_bn',
]
