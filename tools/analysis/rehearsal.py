# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Goes through the schedule of a training, without model and data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import torch
from mmengine.config import Config
from mmengine.hooks import ParamSchedulerHook
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper
from mmengine.registry import DATASETS, OPTIMIZERS, init_default_scope
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch.utils.data import DataLoader, Dataset

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.recipe import BatchPlan
from mmdet_megdet.runtime.config import check_lr_scaling


class Update(NamedTuple):
    """An optimizer update.

    Attributes:
        first_iteration (int): Iterations done before those of this update.
        lr (float): The learning rate that it uses.
    """

    first_iteration: int
    lr: float


class Mark(NamedTuple):
    """Where something happens, in updates (between two, if need be)."""

    label: str
    update: float


class Schedule(NamedTuple):
    """What is plotted.

    Attributes:
        updates (list[Update]): All updates of the training.
        marks (list[Mark]): Ends of schedulers, and milestones.
        epoch_length (int): Iterations of an epoch.
        accumulation (int): Iterations of an update.
        batch (str): What an update sees, in words.
    """

    updates: list[Update]
    marks: list[Mark]
    epoch_length: int
    accumulation: int
    batch: str

    @property
    def updates_per_epoch(self) -> float:
        """A whole number in a sound recipe."""
        return self.epoch_length / self.accumulation


class DryOptimWrapper(OptimWrapper):
    """Counts iterations and updates as a training does; computes nothing."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.updates: list[Update] = []
        self._done = 0

    def backward(self, loss: float, **kwargs) -> None:
        """Count an iteration."""
        self._inner_count += 1

    def step(self, **kwargs) -> None:
        """Note an update."""
        self.updates.append(Update(self._done, self.get_lr()['lr'][0]))
        self._done = self._inner_count


class Absent(Dataset):
    """A data set of which only the length is known."""

    metainfo: dict = {}

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


class DryRunner(Runner):
    """The stock Runner's schedulers and loop, without model and data.

    Args:
        cfg (Config): Config of the training.
        gpus (int): Number of ranks.
        iterations (int): Iterations of an epoch.
        accumulation (int): Iterations of an update; 1 under UpdateTrainLoop.
    """

    def __init__(
        self, cfg: Config, gpus: int, iterations: int, accumulation: int
    ) -> None:
        loop = dict(cfg.train_cfg)
        self.by_update = by_update(cfg)
        if self.by_update:
            # Goes through no data: the stock loops know as much of it.
            del loop['type']
            loop['by_epoch'] = loop.get('max_updates') is None
            if not loop['by_epoch']:
                loop['max_iters'] = loop.pop('max_updates')
        images = cfg.train_dataloader.batch_size
        self._world_size = gpus
        self._train_dataloader = DataLoader(
            Absent(iterations * images), batch_size=images
        )
        # The loop writes the data set's metainfo into it.
        self.visualizer = SimpleNamespace()
        self.logger = MMLogger.get_current_instance()
        self.param_schedulers = cfg.get('param_scheduler') or []
        self._train_loop = self.build_train_loop(loop)
        if self.by_update:
            updates = self._train_loop.max_iters
            self._train_loop._max_epochs = -(-updates // iterations)
        optimizer = OPTIMIZERS.build(
            cfg.optim_wrapper.optimizer,
            default_args=dict(params=[torch.nn.Parameter(torch.zeros(1))]),
        )
        self.optim_wrapper = DryOptimWrapper(
            optimizer, accumulative_counts=accumulation
        )
        self.scale_lr(self.optim_wrapper, cfg.get('auto_scale_lr'))
        self.param_schedulers = self.build_param_scheduler(
            self.param_schedulers
        )

    def train(self) -> list[Update]:
        """Step the schedulers through the whole training."""
        loop, hook = self.train_loop, ParamSchedulerHook()
        self.optim_wrapper.initialize_count_status(
            torch.nn.Module(), 0, loop.max_iters
        )
        epoch_length = len(loop.dataloader)
        for iteration in range(loop.max_iters):
            self.optim_wrapper.update_params(0.0)
            hook.after_train_iter(self, iteration)
            if self.has_epochs and (iteration + 1) % epoch_length == 0:
                hook.after_train_epoch(self)
        return self.optim_wrapper.updates

    @property
    def has_epochs(self) -> bool:
        """Whether schedulers that count epochs are stepped at all."""
        return self.by_update or isinstance(
            self.train_loop, EpochBasedTrainLoop
        )

    def marks(self) -> list[Mark]:
        """Ends of schedulers before training ends, and milestones."""
        loop = self.train_loop
        accumulation = self.optim_wrapper._accumulative_counts
        marks = []
        for scheduler in self.param_schedulers:
            scale = 1 / accumulation
            if scheduler.by_epoch:
                scale *= len(loop.dataloader)
                if not self.has_epochs:
                    continue
            elif getattr(scheduler, 'count', 'iters') == 'updates':
                scale = 1
            name = type(scheduler).__name__
            begin, end = scheduler.begin, scheduler.end
            marks.append(Mark(f'{name} ends', end * scale))
            marks += [
                Mark('milestone', (begin + milestone) * scale)
                for milestone in getattr(scheduler, 'milestones', ())
                if begin + milestone < end
            ]
        length = loop.max_iters / accumulation
        return sorted(
            (mark for mark in marks if mark.update < length),
            key=lambda mark: mark.update,
        )


def count_images(cfg: Config) -> int:
    """Number of training images of the config's data set, after filtering.

    Raises:
        ConfigError: If the data set is not on this machine.
    """
    try:
        return len(DATASETS.build(cfg.train_dataloader.dataset))
    except FileNotFoundError as error:
        raise ConfigError(
            f"the data set's annotations are not here ({error}): give the "
            'number of training images with --images N (117266 for COCO '
            '2017), or the length of an epoch with --epoch-length ITERATIONS.'
        ) from error


def get_epoch_length(cfg: Config, images: int, gpus: int) -> int:
    """Iterations of an epoch on each rank.

    Raises:
        ConfigError: If there are fewer images than one iteration takes.
    """
    loader = cfg.train_dataloader
    size = loader.batch_size
    batch_sampler = loader.get('batch_sampler') or {}
    if by_update(cfg):
        length = images // (gpus * size * get_accumulation(cfg, gpus))
    elif batch_sampler.get('drop_last') or loader.get('drop_last'):
        # MMEngine's DefaultSampler repeats a few.
        length = -(-images // gpus) // size
    else:
        length = -(-images // (gpus * size))
    if length < 1:
        raise ConfigError(
            f'{images} images make no iteration of {gpus} GPUs x {size} '
            'images per GPU.'
        )
    return length


def by_update(cfg: Config) -> bool:
    """Whether an iteration is an update."""
    loop = cfg.get('train_cfg') or {}
    return loop.get('type') == 'UpdateTrainLoop'


def get_accumulation(cfg: Config, gpus: int) -> int:
    """Iterations of an update: TotalBatchHook's, or the config's own.

    Raises:
        PlanError: If the hook's total batch cannot be split so.
    """
    hooks = [
        *cfg.get('default_hooks', {}).values(),
        *(cfg.get('custom_hooks') or []),
    ]
    for hook in hooks:
        if hook and hook.get('type') == 'TotalBatchHook':
            total = hook.get('total_batch_size', 256)
            images = cfg.train_dataloader.batch_size
            return BatchPlan(gpus, images, total).accumulation
    return cfg.optim_wrapper.get('accumulative_counts', 1)


def rehearse(
    cfg: Config,
    gpus: int = 1,
    images: int | None = None,
    epoch_length: int | None = None,
) -> Schedule:
    """Go through the schedule of a training.

    Args:
        cfg (Config): Config of the training, with one optimizer.
        gpus (int): Number of ranks. Defaults to 1.
        images (int, optional): Training images. Defaults to None: those of
            the config's data set.
        epoch_length (int, optional): Iterations of an epoch. Defaults to
            None: from the number of images.

    Returns:
        Schedule: All updates, and what to mark.

    Raises:
        ConfigError: If the length of an epoch cannot be found, there is
            not one optimizer, or its learning rate would be scaled wrongly.
        PlanError: If TotalBatchHook would refuse the batch.
    """
    init_default_scope(cfg.get('default_scope') or 'mmengine')
    if 'optimizer' not in cfg.optim_wrapper:
        raise ConfigError(
            'optim_wrapper has no optimizer of its own: a config with several '
            'optimizers cannot be shown.'
        )
    if epoch_length is None:
        images = count_images(cfg) if images is None else images
        epoch_length = get_epoch_length(cfg, images, gpus)
    accumulation = get_accumulation(cfg, gpus)
    per_gpu = cfg.train_dataloader.batch_size
    check_lr_scaling(cfg.get('auto_scale_lr'), gpus, per_gpu, accumulation)
    of_iterations = 1 if by_update(cfg) else accumulation
    runner = DryRunner(cfg, gpus, epoch_length, of_iterations)
    return Schedule(
        runner.train(),
        runner.marks(),
        epoch_length,
        of_iterations,
        f'{gpus} GPU(s) x {per_gpu} images x {accumulation} accumulated = '
        f'{gpus * per_gpu * accumulation} images an update',
    )
