# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The task that ``soak.py`` trains, and what is measured meanwhile.

Imported by ``soak_config.py`` on every rank.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import torch
from mmengine.dist import broadcast_object_list
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import (
    DATA_SAMPLERS,
    DATASETS,
    FUNCTIONS,
    HOOKS,
    MODELS,
)
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import Dataset

from mmdet_megdet.sync_bn import MegDetSyncBN
from mmdet_megdet.updates import EpochBatch, UpdateBatchSampler

# Iterations of a process after which it is measured: these, then every
# thousandth.
MARKS = (100, 200, 500)
SIZE = 16


@DATASETS.register_module()
class SoakImages(Dataset):
    """Noise whose mean is to be guessed, without random augmentation."""

    metainfo = dict(classes=('noise',))

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(3, SIZE, SIZE, generator=generator)
        image += torch.randn((), generator=generator)
        return dict(inputs=image, targets=image.mean().reshape(1))


@FUNCTIONS.register_module()
def soak_collate(items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A batch of any number of images, none included."""
    inputs = [torch.empty(0, 3, SIZE, SIZE)]
    targets = [torch.empty(0, 1)]
    for item in items:
        inputs.append(item['inputs'][None])
        targets.append(item['targets'][None])
    return dict(inputs=torch.cat(inputs), targets=torch.cat(targets))


@DATA_SAMPLERS.register_module()
class UnevenBatchSampler(UpdateBatchSampler):
    """Cuts a rank's share of an update in random places.

    So micro-batches are uneven, and some are empty, but each update has the
    same number of them on every rank. They depend on the update and the rank
    alone.

    Args:
        sampler (Sampler): As :class:`UpdateBatchSampler`.
        batch_size (int): Images of a batch on average.
    """

    def __iter__(self) -> Iterator[EpochBatch]:
        batches = super().__iter__()
        while update := list(islice(batches, self.accumulation)):
            images = [image for batch in update for image in batch]
            generator = np.random.default_rng(images)
            cuts = generator.integers(0, len(images) + 1, len(update) - 1)
            for part in np.split(images, np.sort(cuts)):
                yield EpochBatch(part.tolist(), update[0].epoch)


@MODELS.register_module()
class SoakRegressor(BaseModel):
    """Two convolutions with ``MegDetSyncBN``, and a linear head.

    Args:
        images_per_gpu (int): By which the sum over a rank's images is
            divided, however many there are.
    """

    def __init__(
        self, images_per_gpu: int, data_preprocessor: dict | None = None
    ) -> None:
        super().__init__(data_preprocessor)
        layers = []
        for channels in (3, 8):
            layers += [nn.Conv2d(channels, 8, 3), MegDetSyncBN(8), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(8, 1)
        self.images_per_gpu = images_per_gpu

    def forward(
        self, inputs: Tensor, targets: Tensor, mode: str
    ) -> dict[str, Tensor]:
        """The loss; this model is only trained."""
        guess = self.head(self.features(inputs).mean((2, 3)))
        squares = (guess - targets).square()
        return dict(loss=squares.sum() / self.images_per_gpu)


@HOOKS.register_module()
class SoakHook(Hook):
    """Tells the iteration, and what each process takes of the machine.

    Rank 0 writes the number of iterations done to ``progress``. Each rank
    adds a line to ``resources_<rank>.jsonl`` at certain iterations since its
    process began.

    Args:
        seconds (float): Ends training with the epoch during which this time
            is over. Defaults to infinity.
    """

    priority = 'VERY_LOW'

    def __init__(self, seconds: float = float('inf')) -> None:
        self.seconds = seconds

    def before_train(self, runner: Runner) -> None:
        """Begin to count."""
        self._begin = time.monotonic()
        self._first = runner.iter
        self._process = psutil.Process()
        self._folder = Path(runner.work_dir)

    def after_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        """Tell where training is, and measure now and then."""
        if runner.rank == 0:
            (self._folder / 'progress').write_text(str(runner.iter + 1))
        count = runner.iter + 1 - self._first
        if count in MARKS or count % 1000 == 0:
            line = dict(
                process=self._process.pid,
                iterations=count,
                resident=self._process.memory_info().rss,
                open_files=self._process.num_fds(),
            )
            path = self._folder / f'resources_{runner.rank}.jsonl'
            with path.open('a') as file:
                file.write(json.dumps(line) + '\n')

    def after_train_epoch(self, runner: Runner) -> None:
        """End by the clock of rank 0."""
        over = [time.monotonic() - self._begin > self.seconds]
        broadcast_object_list(over)
        runner.train_loop.stop_training = over[0]
