# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""One iteration is one update, and the same one on any hardware."""

from .batch_sampler import EpochBatch, UpdateBatchSampler
from .layout import epoch_layout, unit_of
from .log import place_of
from .loop import SkipUpdate, UpdateTrainLoop
from .random_streams import seed_by_image, seed_generators
from .resume import UpdateNote, resumed_epoch

__all__ = [
    'EpochBatch',
    'SkipUpdate',
    'UpdateBatchSampler',
    'UpdateNote',
    'UpdateTrainLoop',
    'epoch_layout',
    'place_of',
    'resumed_epoch',
    'seed_by_image',
    'seed_generators',
    'unit_of',
]
