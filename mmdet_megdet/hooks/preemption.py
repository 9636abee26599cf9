# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""SIGTERM: all ranks stop at one place, with a checkpoint."""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist
from mmengine.device import get_device
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, Runner

from ..runtime.config import ConfigError
from ..runtime.setup_check import check_setup
from ..runtime.termination import (
    REQUEUE_STATUS,
    Preempted,
    TerminationSignal,
    shield_workers,
)
from ..runtime.workers import hold_workers
from ..sync_bn.groups import group_timeout
from .atomic_checkpoint import AtomicCheckpointHook
from .rank_watch import RankWatchHook


@HOOKS.register_module()
class PreemptionHook(Hook):
    """On SIGTERM, let all ranks stop together with a checkpoint.

    SIGTERM is what Slurm sends before it takes a node, and what torchrun
    passes on. Contract:

    - Ranks see the signal at different moments, and not all of them may. At
      each optimizer update they agree by one all-reduce of a number, on the
      CPU and in a group of their own (gloo), so that no device is waited for.
    - After that update all pool BatchNorm's running statistics, rank 0 saves
      ``iter_N.pth`` as AtomicCheckpointHook does, and all end with status 75
      when it is whole. (torchrun hides the status, srun passes it on.)
      ``--resume`` then continues with the batch that comes next.
    - A validation is first carried to its end.
    - If a rank has failed or is gone, there is nothing to agree with: a rank
      that got SIGTERM, as torchrun sends it then, ends within seconds with
      status 69 and says so, even if it waits in a collective. (This needs
      ``RankWatchHook``.)
    - The dataloaders' workers do not heed a SIGTERM that comes from
      elsewhere than their training process.

    When training is over SIGTERM does again what it did before. In a run
    without checkpoints (``default_hooks.checkpoint=None``) the hook does
    nothing.

    Raises:
        ConfigError: Before training, if checkpoints are those of MMEngine's
            own hook, if the loop could not go on inside an epoch, or if the
            ranks cannot make their group.

    Examples:
        >>> train_cfg = dict(type='UpdateTrainLoop', max_epochs=24)
        >>> default_hooks = dict(
        ...     checkpoint=dict(type='AtomicCheckpointHook', interval=1),
        ...     rank_watch=dict(type='RankWatchHook'),
        ...     preemption=dict(type='PreemptionHook'),
        ... )
    """

    # Behind the schedulers, the EMA and a checkpoint of this iteration.
    priority = 'LOWEST'

    _signal: TerminationSignal | None = None

    def before_run(self, runner: Runner) -> None:
        """Shield the workers, ahead of hooks that look at the loader."""
        check_setup(runner)
        hold_workers(runner)
        for loop in (runner._train_loop, runner._val_loop):
            if isinstance(loop, BaseLoop):
                shield_workers(loop.dataloader)

    def before_train(self, runner: Runner) -> None:
        """Note SIGTERM from now on; a collective."""
        self._saver = _find(runner, CheckpointHook)
        if self._saver is None:
            print_log(
                'PreemptionHook: the run has no CheckpointHook, so SIGTERM '
                'ends it at once, as ever.',
                logger='current',
            )
            return
        _check_saver(self._saver)
        _check_loop(runner.train_loop)
        self._group = _cpu_group() if runner.world_size > 1 else None
        self._signal = TerminationSignal()
        self._signal.install()
        self._watch = getattr(_find(runner, RankWatchHook), 'watch', None)
        if self._watch is not None:
            self._watch.asked_to_end = self._signal.received

    def after_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        """After an update: agree, and perhaps stop."""
        if self._signal is None or not _updated(runner.optim_wrapper):
            return
        rank = self._first_asked(runner.rank)
        if rank is not None:
            self._stop(runner, rank)

    def after_train(self, runner: Runner) -> None:
        """Give SIGTERM back."""
        self._restore()

    def on_error(self, runner: Runner, error: Exception) -> None:
        """Give SIGTERM back."""
        self._restore()

    def _restore(self) -> None:
        if self._signal is not None:
            self._signal.restore()
            self._signal = None

    def _first_asked(self, rank: int) -> int | None:
        """A rank that got SIGTERM; None if none did. All ranks agree."""
        asked = torch.tensor(rank + 1 if self._signal.received() else 0)
        if self._group is not None:
            dist.all_reduce(asked, dist.ReduceOp.MAX, self._group)
        return int(asked) - 1 if asked else None

    def _stop(self, runner: Runner, rank: int) -> None:
        runner.call_hook('before_interrupt')
        path = self._saver.save_inside_epoch(runner)
        if self._group is not None:
            dist.barrier(self._group)
        if self._watch is not None:
            self._watch.stop()
        self._signal.ignore()
        print_log(
            f'PreemptionHook: rank {rank} got SIGTERM. All ranks stop after '
            f'iteration {runner.iter + 1} with {path}, status '
            f'{REQUEUE_STATUS}; --resume continues.',
            logger='current',
            level=logging.WARNING,
        )
        # As at the end of any run: logs and visualizers are closed.
        runner.call_hook('after_run')
        raise Preempted


def _find(runner: Runner, kind: type[Hook]) -> Hook | None:
    return next((h for h in runner.hooks if isinstance(h, kind)), None)


def _updated(wrapper: OptimWrapper | OptimWrapperDict) -> bool:
    """Whether the iteration that is over ended in an update."""
    if isinstance(wrapper, OptimWrapperDict):
        return all(one.should_update() for one in wrapper.values())
    return wrapper.should_update()


def _cpu_group() -> dist.ProcessGroup:
    timeout = group_timeout(dist.group.WORLD, torch.device(get_device()))
    try:
        return dist.new_group(backend='gloo', timeout=timeout)
    except RuntimeError as error:
        raise ConfigError(
            'PreemptionHook: the ranks cannot make a group on the CPU (gloo: '
            f"{error}). Name the machines' network interface in "
            'GLOO_SOCKET_IFNAME, or leave SIGTERM as it is by '
            'default_hooks.preemption=None.'
        ) from error


def _check_saver(hook: CheckpointHook) -> None:
    if not isinstance(hook, AtomicCheckpointHook):
        raise ConfigError(
            f'PreemptionHook saves by AtomicCheckpointHook, not by '
            f'{type(hook).__name__}: set default_hooks.checkpoint.type='
            "'AtomicCheckpointHook' (its options are those of "
            'CheckpointHook), or leave SIGTERM as it is by '
            'default_hooks.preemption=None.'
        )


def _check_loop(loop: BaseLoop) -> None:
    if isinstance(loop, EpochBasedTrainLoop):
        raise ConfigError(
            f'PreemptionHook saves inside an epoch, and {type(loop).__name__} '
            'cannot go on there: it would begin the epoch anew, with the '
            'counts of iterations and updates ahead of it. Set '
            "train_cfg.type='UpdateTrainLoop' and train_dataloader."
            "batch_sampler=dict(type='UpdateBatchSampler'), or leave SIGTERM "
            'as it is by '
            'default_hooks.preemption=None.'
        )
