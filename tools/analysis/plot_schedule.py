# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Plot the learning rate of a whole training, without training.

The real schedulers of the config are built and stepped as the Runner does
it, for an optimizer without a model: the curve is that of the optimizer's
own learning rate, of which parameter groups may have multiples.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
from figures import save
from matplotlib.figure import Figure
from mmengine.config import Config
from mmengine.hooks import ParamSchedulerHook
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper
from mmengine.registry import DATASETS, OPTIMIZERS, init_default_scope
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from mmdet_megdet.arguments import positive
from mmdet_megdet.cli import add_common_options, load_config, run_tool
from mmdet_megdet.errors import ConfigError
from mmdet_megdet.recipe import BatchPlan
from mmdet_megdet.runtime import check_lr_scaling, find_hook
from mmdet_megdet.upstream.mmengine_names import runner_without_model


class Schedule(NamedTuple):
    """What is plotted."""

    # The learning rate that each update uses.
    rates: list[float]
    # Ends of schedulers and milestones, and when they come, in updates
    # (between two, if need be).
    marks: list[tuple[str, float]]
    # A whole number in a sound recipe.
    updates_per_epoch: float
    # What an update sees, in words.
    batch: str


def rehearse(
    cfg: Config, gpus: int = 1, images: int | None = None
) -> Schedule:
    """Go through the schedule of a training, which has one optimizer.

    ``images`` are those of an epoch, by default the data set's.

    Raises:
        ConfigError: If the length of an epoch cannot be found, or the
            learning rate would be scaled wrongly.
        PlanError: If TotalBatchHook would refuse the batch.
    """
    init_default_scope(cfg.get('default_scope') or 'mmengine')
    per_gpu = cfg.train_dataloader.batch_size
    accumulation = cfg.optim_wrapper.get('accumulative_counts', 1)
    hook = find_hook(cfg, 'TotalBatchHook')
    if hook is not None:
        total = hook.get('total_batch_size', 256)
        accumulation = BatchPlan(gpus, per_gpu, total).accumulation
    check_lr_scaling(cfg.get('auto_scale_lr'), accumulation)
    if images is None:
        images = count_images(cfg)
    iterations = epoch_length(cfg, images, gpus, accumulation)
    of_iterations = 1 if _by_update(cfg) else accumulation
    runner = _runner(cfg, gpus, iterations, of_iterations)
    by_epoch = isinstance(runner.train_loop, EpochBasedTrainLoop)
    epoch = iterations if by_epoch or _by_update(cfg) else None
    return Schedule(
        _train(runner, epoch),
        _marks(runner, epoch, of_iterations),
        iterations / of_iterations,
        f'{gpus} GPU(s) x {per_gpu} images x {accumulation} accumulated = '
        f'{gpus * per_gpu * accumulation} images an update',
    )


def count_images(cfg: Config) -> int:
    """Return the number of training images, after filtering."""
    try:
        return len(DATASETS.build(cfg.train_dataloader.dataset))
    except FileNotFoundError as error:
        raise ConfigError(
            f"the data set's annotations are not here ({error}): give the "
            'number of training images with --images N (117266 for COCO 2017).'
        ) from error


def epoch_length(
    cfg: Config, images: int, gpus: int, accumulation: int
) -> int:
    """Return the iterations of an epoch: updates under UpdateTrainLoop."""
    loader = cfg.train_dataloader
    size = loader.batch_size
    batch_sampler = loader.get('batch_sampler') or {}
    if _by_update(cfg):
        length = images // (gpus * size * accumulation)
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
    return cfg.train_cfg.get('type') == 'UpdateTrainLoop'


class _Epoch(list):
    """A data set of which only the length is known."""

    metainfo: dict = {}


def _runner(
    cfg: Config, gpus: int, iterations: int, accumulation: int
) -> Runner:
    """Build the stock schedulers and loop, of so many iterations an epoch."""
    loop = dict(cfg.train_cfg)
    schedulers = copy.deepcopy(cfg.get('param_scheduler') or [])
    if _by_update(cfg):
        # Goes through no data: the stock loops know as much of it.
        del loop['type']
        updates = loop.pop('max_updates', None)
        loop['by_epoch'] = updates is None
        if updates is not None:
            loop['max_iters'] = updates
            # UpdateTrainLoop has epochs then too.
            for scheduler in schedulers:
                if scheduler.get('by_epoch', True):
                    scheduler.setdefault('end', -(-updates // iterations))
    size = cfg.train_dataloader.batch_size
    loader = DataLoader(_Epoch(range(iterations * size)), size)
    runner = runner_without_model(gpus, loader, loop)
    runner.logger = MMLogger.get_current_instance()
    runner.visualizer = SimpleNamespace()
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = OPTIMIZERS.build(
        cfg.optim_wrapper.optimizer, default_args=dict(params=[weight])
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


def _train(runner: Runner, epoch: int | None) -> list[float]:
    """Step the schedulers through the whole training."""
    wrapper, hook = runner.optim_wrapper, ParamSchedulerHook()
    (weight,) = wrapper.param_groups[0]['params']
    rates = []
    for iteration in range(runner.max_iters):
        lr = wrapper.get_lr()['lr'][0]
        wrapper.update_params(weight * 1)
        if wrapper.should_update():
            rates.append(lr)
        hook.after_train_iter(runner, iteration)
        if epoch and (iteration + 1) % epoch == 0:
            hook.after_train_epoch(runner)
    return rates


def _marks(
    runner: Runner, epoch: int | None, accumulation: int
) -> list[tuple[str, float]]:
    """Find ends of schedulers before training ends, and milestones."""
    marks = []
    for scheduler in runner.param_schedulers:
        begin, end, scale = scheduler.begin, scheduler.end, 1 / accumulation
        if scheduler.by_epoch:
            if epoch is None:  # then it is never stepped
                continue
            scale *= epoch
        elif getattr(scheduler, 'count', 'iters') == 'updates':
            scale = 1
        marks.append((f'{type(scheduler).__name__} ends', end * scale))
        marks += [
            ('milestone', (begin + milestone) * scale)
            for milestone in getattr(scheduler, 'milestones', ())
            if begin + milestone < end
        ]
    within = [m for m in marks if m[1] < runner.max_iters / accumulation]
    return sorted(within, key=lambda mark: mark[1])


def draw(schedule: Schedule, title: str) -> Figure:
    """Draw the learning rate, linearly and logarithmically."""
    rates, per_epoch = schedule.rates, schedule.updates_per_epoch
    figure = Figure(figsize=(10, 7), layout='constrained')
    axes = figure.subplots(2, 1, sharex=True)
    figure.suptitle(
        f'{title}\n{schedule.batch}; {len(rates)} updates, {per_epoch:g} an '
        'epoch',
        fontsize=10,
    )
    for axis, scale in zip(axes, ('linear', 'log'), strict=True):
        # Update k uses its value from k to k + 1.
        axis.stairs(rates, baseline=None, linewidth=1.5)
        axis.set_yscale(scale)
        axis.set_ylabel(f'learning rate ({scale})')
        axis.grid(alpha=0.3)
        axis.set_xlim(0, len(rates))
        for number, (label, update) in enumerate(schedule.marks):
            axis.axvline(
                update,
                color=f'C{number % 9 + 1}',
                linestyle='--',
                linewidth=1,
                label=f'{label}: update {update:g}, '
                f'epoch {update / per_epoch:.4g}',
            )
    if schedule.marks:
        handles = axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc='outside lower center', fontsize=9)
    axes[1].set_xlabel('optimizer update')
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """Plot the schedule of a config."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    add = parser.add_argument
    add('config', help='config file')
    add('--gpus', type=positive, default=1, help='number of GPUs (1)')
    images = "number of training images (default: the data set's)"
    add('--images', type=positive, help=images)
    add('--out', type=Path, help='figure (WORK_DIR/schedule.png)')
    add_common_options(parser)
    args = parser.parse_args(argv)
    cfg = load_config(args)
    schedule = rehearse(cfg, args.gpus, args.images)
    out = args.out or Path(cfg.work_dir, 'schedule.png')
    save(draw(schedule, Path(args.config).name), out)
    print(f'wrote {out}')


if __name__ == '__main__':
    run_tool(main)
