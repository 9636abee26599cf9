# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""One iteration is one update, and the same one on any hardware."""

from .batch_sampler import EpochBatch, UpdateBatchSampler
from .image_streams import seed_by_image
from .layout import epoch_layout, unit_of
from .loop import SkipUpdate, UpdateTrainLoop
from .place import place_of
from .resume import UpdateNote, epoch_began
from .seeds import seed_generators

__all__ = [
    'EpochBatch',
    'SkipUpdate',
    'UpdateBatchSampler',
    'UpdateNote',
    'UpdateTrainLoop',
    'epoch_began',
    'epoch_layout',
    'place_of',
    'seed_by_image',
    'seed_generators',
    'unit_of',
]
