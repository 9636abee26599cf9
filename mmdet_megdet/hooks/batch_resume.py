# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Resuming where a batch is split over other hardware than before."""

from __future__ import annotations

import logging

from mmengine.logging import print_log
from mmengine.optim import _ParamScheduler
from mmengine.runner import Runner

from ..runtime.config import ConfigError


def continue_batch(
    runner: Runner, saved: dict | None, now: dict[str, int | None]
) -> None:
    """Make a resumed run continue on the hardware that there is now.

    MMEngine resumes the epoch and the number of iterations done. The latter
    is another number where an epoch has other iterations; and from it the
    optimizer wrapper tells where an accumulation ends, and training where it
    ends. So it is converted, at an epoch's end. What counts epochs or
    optimizer updates goes on where it was.

    Args:
        runner (Runner): Resumed, before its first iteration.
        saved (dict, optional): What ``now`` was for the checkpoint; None if
            it does not say.
        now (dict): ``world_size``, ``images_per_gpu``, ``total_batch_size``,
            ``accumulation``, and ``iterations_per_epoch``, which is None
            where training does not know epochs.

    Raises:
        ConfigError: If there is nothing to convert to: the checkpoint is not
            of an epoch's end, or does not say on which hardware it was
            trained, or training counts iterations.
    """
    if saved == now:
        return
    if saved is None:
        _check_unknown(runner, now)
        return
    changes = ', '.join(
        f'{key}={saved[key]} -> {now[key]}'
        for key in now
        if saved[key] != now[key]
    )
    if saved['total_batch_size'] == now['total_batch_size']:
        text = 'other hardware than before; an update still takes'
    else:
        text = 'another batch than before: an update takes'
    _warn(f'{text} {now["total_batch_size"]} images ({changes}).')
    if any(
        saved[key] != now[key]
        for key in ('accumulation', 'iterations_per_epoch')
    ):
        _tell_of_iterations(runner)
    if now['iterations_per_epoch'] is None:
        _check_accumulation(saved, now)
    else:
        _convert(runner, saved, now)


def iteration_schedulers(runner: Runner) -> list[_ParamScheduler]:
    """The schedulers that do not count epochs."""
    schedulers = runner.param_schedulers or []
    if isinstance(schedulers, dict):
        schedulers = [s for group in schedulers.values() for s in group]
    return [s for s in schedulers if not s.by_epoch]


def _check_unknown(runner: Runner, now: dict[str, int | None]) -> None:
    per_epoch = now['iterations_per_epoch']
    if per_epoch is None or runner.iter == runner.epoch * per_epoch:
        return
    raise ConfigError(
        f'The checkpoint has {runner.iter} iterations in {runner.epoch} '
        f'epochs, which are {runner.epoch * per_epoch} iterations here, and '
        'does not say on which hardware it was trained: TotalBatchHook was '
        'not there. Resume on the same hardware from the end of an epoch, or '
        'start from the weights alone (load_from without resume).'
    )


def _tell_of_iterations(runner: Runner) -> None:
    names = [
        type(s).__name__
        for s in iteration_schedulers(runner)
        if getattr(s, 'count', 'iters') == 'iters' and s._global_step < s.end
    ]
    if names:
        _warn(
            f'{", ".join(names)} count(s) iterations, of which an update or '
            'an epoch has another number now, and go(es) on at the same '
            'iteration: its end and milestones come at other updates and '
            "epochs. PreciseLinearWarmup(count='updates') and schedulers that "
            'count epochs would not care.'
        )


def _check_accumulation(saved: dict, now: dict[str, int | None]) -> None:
    if saved['accumulation'] == now['accumulation']:
        return
    raise ConfigError(
        'Training that counts iterations cannot resume where an update is '
        f'another number of them ({saved["accumulation"]} before, '
        f'{now["accumulation"]} here). Choose the images per GPU so that it '
        'stays, or start from the weights alone (load_from without resume).'
    )


def _convert(runner: Runner, saved: dict, now: dict[str, int | None]) -> None:
    before = runner.iter
    if before != runner.epoch * (saved['iterations_per_epoch'] or 0):
        raise ConfigError(
            f'The checkpoint, of {before} iterations, does not say that it '
            'was saved at the end of an epoch, and an epoch cannot go on in '
            'its middle with a batch that is split otherwise. Resume from '
            'one that a CheckpointHook with by_epoch=True saved '
            '(epoch_N.pth).'
        )
    loop = runner.train_loop
    loop._iter = runner.epoch * now['iterations_per_epoch']
    runner.optim_wrapper.initialize_count_status(
        runner.model, loop.iter, loop.max_iters
    )
    _warn(
        f'{runner.epoch} epochs are done: {before} iterations before, '
        f'{loop.iter} here; training goes on from there.'
    )


def _warn(text: str) -> None:
    print_log(
        f'TotalBatchHook: {text}', logger='current', level=logging.WARNING
    )
