# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Go through the schedule of a training, without model and data."""

from __future__ import annotations

import copy
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
from mmdet_megdet.runtime import check_lr_scaling, find_hook
from mmdet_megdet.upstream.mmengine_names import runner_without_model


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
    check_lr_scaling(cfg.get('auto_scale_lr'), accumulation)
    of_iterations = 1 if _by_update(cfg) else accumulation
    runner = _runner(cfg, gpus, epoch_length, of_iterations)
    has_epochs = _by_update(cfg) or isinstance(
        runner.train_loop, EpochBasedTrainLoop
    )
    return Schedule(
        _train(runner, has_epochs),
        _marks(runner, has_epochs, of_iterations),
        epoch_length,
        of_iterations,
        f'{gpus} GPU(s) x {per_gpu} images x {accumulation} accumulated = '
        f'{gpus * per_gpu * accumulation} images an update',
    )


class _Absent(Dataset):
    """A data set of which only the length is known."""

    metainfo: dict = {}

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


class _NoLoss:
    """A loss without gradients."""

    def __truediv__(self, accumulation: float) -> _NoLoss:
        return self

    def backward(self) -> None:
        """Leave the gradients alone."""


def _runner(
    cfg: Config, gpus: int, iterations: int, accumulation: int
) -> Runner:
    """Build the stock schedulers and loop, of so many iterations an epoch."""
    loop = dict(cfg.train_cfg)
    schedulers = copy.deepcopy(cfg.get('param_scheduler') or [])
    if _by_update(cfg):
        # Goes through no data: the stock loops know as much of it.
        del loop['type']
        updates = loop.get('max_updates')
        loop['by_epoch'] = updates is None
        if updates is not None:
            loop['max_iters'] = loop.pop('max_updates')
            # UpdateTrainLoop has epochs then too.
            for scheduler in schedulers:
                if scheduler.get('by_epoch', True):
                    scheduler.setdefault('end', -(-updates // iterations))
    size = cfg.train_dataloader.batch_size
    loader = DataLoader(_Absent(iterations * size), batch_size=size)
    runner = runner_without_model(gpus, loader, loop)
    runner.logger = MMLogger.get_current_instance()
    runner.visualizer = SimpleNamespace()
    optimizer = OPTIMIZERS.build(
        cfg.optim_wrapper.optimizer,
        default_args=dict(params=[torch.nn.Parameter(torch.zeros(1))]),
    )
    runner.optim_wrapper = OptimWrapper(
        optimizer, accumulative_counts=accumulation
    )
    runner.optim_wrapper.initialize_count_status(
        torch.nn.Module(), 0, runner.max_iters
    )
    runner.param_schedulers = schedulers
    runner.scale_lr(runner.optim_wrapper, cfg.get('auto_scale_lr'))
    runner.param_schedulers = runner.build_param_scheduler(schedulers)
    return runner


def _train(runner: Runner, has_epochs: bool) -> list[Update]:
    """Step the schedulers through the whole training."""
    wrapper, hook, loss = runner.optim_wrapper, ParamSchedulerHook(), _NoLoss()
    epoch_length = len(runner.train_dataloader)
    updates: list[Update] = []
    done = 0
    for iteration in range(runner.max_iters):
        lr = wrapper.get_lr()['lr'][0]
        wrapper.update_params(loss)
        if wrapper.should_update():
            updates.append(Update(done, lr))
            done = iteration + 1
        hook.after_train_iter(runner, iteration)
        if has_epochs and (iteration + 1) % epoch_length == 0:
            hook.after_train_epoch(runner)
    return updates


def _marks(runner: Runner, has_epochs: bool, accumulation: int) -> list[Mark]:
    """Find ends of schedulers before training ends, and milestones."""
    marks = []
    for scheduler in runner.param_schedulers:
        scale = 1 / accumulation
        if scheduler.by_epoch:
            scale *= len(runner.train_dataloader)
            if not has_epochs:  # then it is never stepped
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
    length = runner.max_iters / accumulation
    within = (mark for mark in marks if mark.update < length)
    return sorted(within, key=lambda mark: mark.update)


def count_images(cfg: Config) -> int:
    """Return the number of training images, after filtering.

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
    """Return the iterations of an epoch on each rank.

    Raises:
        ConfigError: If there are fewer images than one iteration takes.
    """
    loader = cfg.train_dataloader
    size = loader.batch_size
    batch_sampler = loader.get('batch_sampler') or {}
    if _by_update(cfg):
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


def _by_update(cfg: Config) -> bool:
    loop = cfg.get('train_cfg') or {}
    return loop.get('type') == 'UpdateTrainLoop'


def get_accumulation(cfg: Config, gpus: int) -> int:
    """Return the iterations of an update: TotalBatchHook's, or the config's.

    Raises:
        PlanError: If the hook's total batch cannot be split so.
    """
    hook = find_hook(cfg, 'TotalBatchHook')
    if hook is not None:
        total = hook.get('total_batch_size', 256)
        images = cfg.train_dataloader.batch_size
        return BatchPlan(gpus, images, total).accumulation
    return cfg.optim_wrapper.get('accumulative_counts', 1)
