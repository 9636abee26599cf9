# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A rank is killed, fails or stands still, and the others wait for it.

Every rank tells the others where it is, by the store and without a
collective; those that wait say which rank is gone and in which step it was:
:class:`RankWatchHook`, by a :class:`RankWatch`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mmengine.device import get_device
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import IterBasedTrainLoop, Runner
from torch import nn
from torch.optim import Optimizer

from ..errors import RANK_LOST_STATUS, ConfigError
from ..sync_bn import group_timeout
from ..text import these_ranks
from ..updates import UpdateTrainLoop, place_of
from ..upstream.torch_names import default_store

_PREFIX = 'megdet_rank_watch'
_LONGEST_SILENCE = 15.0  # seconds; a busy machine is silent for some
_COLLECTIVE_ERRORS = ('gloo', 'NCCL', 'Connection', 'Timed out', 'timed out')
_TORCH_TIMEOUT = 1800.0  # gloo's, where the group does not tell its own


@HOOKS.register_module()
class RankWatchHook(Hook):
    """When ranks stop moving, let every log say which rank and in which step.

    Contract:

    - Each rank tells in the store by which the ranks met where it is: epoch,
      update, micro-step, and whether it loads data, is in forward, in
      backward, in the optimizer's step or in validation. (With GPUs that is
      the host's place; the device may be behind.)
    - A rank that has not moved for half of the collectives' timeout
      (``env_cfg.dist_cfg.timeout``) logs where it waits, which ranks give no
      sign of life and where they were last, and where the others are. It does
      not need the collective to return, and so speaks ahead of NCCL's
      watchdog, which ends the process.
    - A rank that fails logs where. If the error is one of a collective it
      also names the rank that is gone, or that failed before it. (This needs
      ``train_cfg.type='UpdateTrainLoop'``.)
    - It does not end a rank; the timeout does.

    A rank counts as gone when it gives no sign of life for a fifth of the
    timeout, at most 15 s. In ordinary training the hook costs a few writes of
    some 150 bytes to the store in an iteration, from a thread of its own.

    Examples:
        >>> default_hooks = dict(rank_watch=dict(type='RankWatchHook'))
    """

    # Behind other hooks, whose work counts for the step ahead of it; ahead of
    # PreemptionHook, which is 'LOWEST' and asks for the watch.
    priority = 95

    watch: RankWatch | None = None

    def before_train(self, runner: Runner) -> None:
        """Begin to watch; a collective."""
        self._runner = runner
        self._batch = self._step = 0
        self.watch = RankWatch(
            runner.rank, runner.world_size, _timeout(), runner.logger.error
        )
        self.watch.start()
        self._handles = [runner.model.register_forward_hook(self._forwarded)]
        for optimizer in _optimizers(runner):
            self._handles += [
                optimizer.register_step_pre_hook(self._stepping),
                optimizer.register_step_post_hook(self._stepped),
            ]

    def before_train_epoch(self, runner: Runner) -> None:
        """Note the place."""
        # Elsewhere than at its beginning an epoch goes on by these loops.
        loop = runner.train_loop
        if isinstance(loop, IterBasedTrainLoop):
            self._batch = loop.iter
        elif isinstance(loop, UpdateTrainLoop):
            self._batch = loop.iter - loop.epoch_began
        self._in_iteration('loading data')

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: object = None
    ) -> None:
        """Note the place."""
        self._batch = batch_idx
        self._in_iteration('forward')

    def before_micro_step(
        self, runner: Runner, index: int, data_batch: object = None
    ) -> None:
        """Note the place."""
        self._step = index
        self._in_iteration('forward')

    def after_micro_step(
        self, runner: Runner, index: int, data_batch: object = None
    ) -> None:
        """Note the place."""
        if index + 1 < runner.train_loop.plan.accumulation:
            self._step = index + 1
            self._in_iteration('loading data')

    def after_train_iter(
        self, runner: Runner, batch_idx: int, *_: Any, **__: Any
    ) -> None:
        """Note the place."""
        self._batch, self._step = batch_idx + 1, 0
        self._in_iteration('loading data')

    def after_train_epoch(self, runner: Runner) -> None:
        """Note the place."""
        self._batch = 0
        self._at(f'between epochs {runner.epoch + 1} and {runner.epoch + 2}')

    def before_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: object = None
    ) -> None:
        """Note the place."""
        self._at(
            f'validation after iteration {runner.iter}, batch '
            f'{batch_idx + 1} of {len(runner.val_dataloader)}'
        )

    def after_val_iter(
        self, runner: Runner, batch_idx: int, *_: Any, **__: Any
    ) -> None:
        """Note the place: after the last batch the metrics come."""
        if batch_idx + 1 == len(runner.val_dataloader):
            self._at(f'validation after iteration {runner.iter}, its metrics')

    def after_train(self, runner: Runner) -> None:
        """End the watch."""
        for handle in self._handles:
            handle.remove()
        if self.watch is not None:
            self.watch.stop()

    def on_error(self, runner: Runner, error: Exception) -> None:
        """Tell where this rank fails, and because of whom."""
        if self.watch is not None:
            self.watch.fail(error)

    def _forwarded(self, model: nn.Module, *_: object) -> None:
        if model.training:
            self._in_iteration('backward')

    def _stepping(self, optimizer: Optimizer, *_: object) -> None:
        self._in_iteration("the optimizer's step")

    def _stepped(self, optimizer: Optimizer, *_: object) -> None:
        self._in_iteration('hooks after the step')

    def _in_iteration(self, phase: str) -> None:
        place = place_of(self._runner, self._batch, self._step)
        self._at(f'{place} ({phase})')

    def _at(self, place: str) -> None:
        # Validation may come without training.
        if self.watch is not None:
            self.watch.at(place)


def _timeout() -> float:
    """Return the seconds after which the run's collectives give up."""
    world = dist.group.WORLD
    if world is None:
        return _TORCH_TIMEOUT
    timeout = group_timeout(world, torch.device(get_device()))
    return _TORCH_TIMEOUT if timeout is None else timeout.total_seconds()


def _optimizers(runner: Runner) -> list[Optimizer]:
    wrapper = runner.optim_wrapper
    if isinstance(wrapper, OptimWrapperDict):
        return [one.optimizer for one in wrapper.values()]
    return [wrapper.optimizer]


@dataclass(frozen=True)
class Beat:
    """What a rank says of itself, while it lives and at its end."""

    number: int = 0  # grows
    place: str = 'before training'
    error: str = ''
    # Whether the error is one of a collective, and so perhaps the consequence
    # of another rank's end.
    follows: bool = False
    finished: bool = False


@dataclass(frozen=True)
class Sight:
    """A rank as another one sees it."""

    beat: Beat  # the latest
    gone: bool  # whether it has been the latest for too long

    @property
    def explains(self) -> bool:
        """Whether its end explains that of the others."""
        return self.gone or bool(self.beat.error and not self.beat.follows)

    def __str__(self) -> str:
        beat = self.beat
        if beat.error:
            return f'failed in {beat.place}: {beat.error}'
        if self.gone:
            return (
                'no sign of life (killed, stopped or cut off), last heard of '
                f'in {beat.place}'
            )
        return 'done' if beat.finished else f'in {beat.place}'


# The other ranks; None if the store, in which they tell, does not answer.
Sights = dict[int, Sight] | None


class RankWatch:
    """Tell where this rank is, and look for the others when that is needed.

    While training goes on a rank only writes, when it gets to another place
    and every few seconds. It reads what the others wrote when it has been at
    the same place for long, when it fails, or when it has been asked to end.
    A rank counts as gone when it has given no sign of life for a fifth of the
    timeout, at most 15 seconds, so that at half of the timeout it is known.

    Args:
        rank (int): This process.
        world_size (int): Number of ranks.
        timeout (float): Seconds after which the run's collectives give up.
        log (Callable): Takes a line for the log.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        timeout: float,
        log: Callable[[str], None],
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout
        self.patience = min(timeout / 5, _LONGEST_SILENCE)
        self.period = self.patience / 5
        # Asked for an end. With a rank gone, training cannot come to the
        # place where ranks agree on it.
        self.asked_to_end: Callable[[], bool] = lambda: False
        self._log = log
        self._beat = Beat()
        self._place = self._beat.place
        self._since = time.monotonic()
        # By rank: the number of its latest beat, and when that came.
        self._changed: dict[int, tuple[int, float]] = {}
        self._news = threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; a collective, after which all ranks can be read."""
        if self.world_size == 1:
            return
        # A connection of its own: a wait in the other one would block it.
        store = default_store()
        if not hasattr(store, 'clone'):
            raise ConfigError(
                f'RankWatchHook needs a store that can be cloned, which torch '
                f'{torch.__version__} does not have (2.13 does). Take a newer '
                'torch, or set default_hooks.rank_watch=None.'
            )
        store = store.clone()
        store.set_timeout(timedelta(seconds=self.patience))
        self._store = dist.PrefixStore(_PREFIX, store)
        self._tell()
        dist.barrier()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def at(self, place: str) -> None:
        """Say where this rank is now, in words; the thread passes it on."""
        self._place = place
        self._since = time.monotonic()
        self._news.set()

    def stop(self) -> None:
        """End; the others do not take this rank for gone."""
        self._beat = replace(self._beat, finished=True)
        if self._end_thread():
            self._tell()

    def fail(self, error: BaseException) -> None:
        """Say that this rank ends with an error, and how the others are.

        Where the error is one of a collective it waits until it knows which
        rank is gone, for as long as that takes to tell.
        """
        follows = is_collective_error(error)
        summary = f'{type(error).__name__}: {_first_line(error)}'
        self._beat = replace(self._beat, error=summary, follows=follows)
        self._log(
            f'rank {self.rank} of {self.world_size} fails in '
            f'{self._place}: {summary}'
        )
        if not self._end_thread():
            return
        self._tell()
        if not follows:
            return
        until = time.monotonic() + self.patience + 2 * self.period
        sights = self._look()
        while not _explained(sights) and time.monotonic() < until:
            time.sleep(self.period)
            self._tell()
            sights = self._look()
        self._log(describe(sights))

    def _run(self) -> None:
        reported_at = None
        while True:
            self._news.wait(self.period)
            self._news.clear()
            if self._ended:
                return
            self._tell()
            since, place = self._since, self._place
            stood = time.monotonic() - since
            asked = self.asked_to_end()
            if not asked and stood < self.patience:
                continue
            sights = self._look()
            if asked and _explained(sights):
                self._log(
                    f'rank {self.rank} got SIGTERM and ends without a '
                    f'checkpoint, in {place}: not all ranks are there to '
                    f'agree on one. {describe(sights)}'
                )
                os._exit(RANK_LOST_STATUS)
            if stood >= self.timeout / 2 and reported_at != since:
                reported_at = since
                self._log(
                    f'rank {self.rank} has been in {place} for {stood:.0f} '
                    f'of {self.timeout:.0f} s (env_cfg.dist_cfg.timeout). '
                    f'{describe(sights)}'
                )

    def _end_thread(self) -> bool:
        """Return whether there was one."""
        if self._thread is None or self._ended:
            return False
        self._ended = True
        self._news.set()
        self._thread.join(2 * self.patience)
        return True

    def _tell(self) -> None:
        self._beat = replace(
            self._beat, number=self._beat.number + 1, place=self._place
        )
        # Whoever holds the store may be gone; then so are all signs of life.
        with suppress(RuntimeError):
            self._store.set(str(self.rank), json.dumps(asdict(self._beat)))

    def _look(self) -> Sights:
        now, sights = time.monotonic(), {}
        for rank in range(self.world_size):
            if rank == self.rank:
                continue
            try:
                beat = Beat(**json.loads(self._store.get(str(rank))))
            except RuntimeError:
                return None
            number, changed = self._changed.get(rank, (None, now))
            if number != beat.number:
                changed = now
                self._changed[rank] = beat.number, now
            silent = now - changed >= self.patience
            sights[rank] = Sight(beat, silent and not beat.finished)
        return sights


def describe(sights: Sights) -> str:
    """Say where the other ranks are, those that are gone or failed first."""
    if sights is None:
        holder = (
            'torchrun' if 'TORCHELASTIC_RUN_ID' in os.environ else 'rank 0'
        )
        return (
            f'The store of {holder}, in which the ranks tell where they '
            f'are, does not answer: {holder} is gone, stopped or cut off.'
        )
    ranks_at: dict[tuple[bool, str], list[int]] = {}
    for rank, sight in sights.items():
        well = not sight.gone and not sight.beat.error
        ranks_at.setdefault((well, str(sight)), []).append(rank)
    return '; '.join(
        f'{these_ranks(ranks)}: {words}'
        for (_, words), ranks in sorted(
            ranks_at.items(), key=lambda item: item[0][0]
        )
    )


def _explained(sights: Sights) -> bool:
    return sights is None or any(s.explains for s in sights.values())


def is_collective_error(error: BaseException) -> bool:
    """Return whether an error may be the consequence of another rank's end."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError)
        and any(word in str(error) for word in _COLLECTIVE_ERRORS)
    )


def _first_line(error: BaseException) -> str:
    line = (str(error).strip().splitlines() or [''])[0]
    return line if len(line) <= 200 else line[:200] + ' ...'
