# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Checks of annotation files in COCO's format, before training or testing.

One judge for the doctor, for the tools and for DataCheckHook. It needs neither
torch nor mmdet; of a data set's type it asks MMEngine's registry.
"""

from .datasets import configured
from .judgement import Epoch, Judged, Judgement, judge, training_epoch
from .reading import unreadable
from .verdict import Verdict

__all__ = [
    'Epoch',
    'Judged',
    'Judgement',
    'Verdict',
    'configured',
    'judge',
    'training_epoch',
    'unreadable',
]
