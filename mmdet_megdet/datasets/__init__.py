# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The embedded data set: generated pictures of shapes in COCO format."""

from .generate import SplitPaths, generate_shapes
from .scene import CLASSES, METAINFO

__all__ = ['CLASSES', 'METAINFO', 'SplitPaths', 'generate_shapes']
