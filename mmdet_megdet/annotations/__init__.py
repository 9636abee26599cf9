# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What training and evaluation make of annotation files in COCO's format.

One judge for the doctor, for the tools and for DataCheckHook. It needs neither
torch nor mmdet; of a data set's type it asks MMEngine's registry.
"""

from .datasets import ROLES, Reader, Use, configured, leaves
from .judging import Judged, Judgement, judge
from .lengths import Epoch, training_epoch
from .reading import read_annotations, unreadable
from .table import Table, listed
from .verdict import Verdict

__all__ = [
    'ROLES',
    'Epoch',
    'Judged',
    'Judgement',
    'Reader',
    'Table',
    'Use',
    'Verdict',
    'configured',
    'judge',
    'leaves',
    'listed',
    'read_annotations',
    'training_epoch',
    'unreadable',
]
