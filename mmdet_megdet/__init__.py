# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""MegDet's large-batch recipe for stock MMDetection 3.x.

Importing the package registers its components in MMEngine's root registries,
lets checkpoints of MMEngine pass torch's safe loading, and makes base configs
``mmdet_megdet::megdet/...`` resolve.
"""

from mmengine.config.utils import MODULE2PACKAGE

from . import (
    faults,
    hooks,
    monitor,
    recipe,
    runtime,
    schedulers,
    sync_bn,
    updates,
)
from .errors import MegDetError
from .version import __version__

__all__ = [
    'MegDetError',
    '__version__',
    'faults',
    'hooks',
    'monitor',
    'recipe',
    'runtime',
    'schedulers',
    'sync_bn',
    'updates',
]

# Where configs lie, MMEngine asks the installed distribution of this name and,
# if there is none, the module. A distribution is taken to have its package
# beside its metadata, which an editable installation has not.
MODULE2PACKAGE['mmdet_megdet'] = 'mmdet_megdet.version'
