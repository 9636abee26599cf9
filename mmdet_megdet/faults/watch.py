# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Ranks tell each other where they are, through the store, not a collective.

No part of a training: tools/dist_doctor.py uses it too.
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

import torch
import torch.distributed as dist

from ..errors import RANK_LOST_STATUS, ConfigError
from ..text import these_ranks
from ..upstream.torch_names import default_store

_PREFIX = 'megdet_rank_watch'
_LONGEST_SILENCE = 15.0  # seconds; a busy machine is silent for some
_COLLECTIVE_ERRORS = ('gloo', 'NCCL', 'Connection', 'Timed out', 'timed out')


@dataclass(frozen=True)
class Beat:
    """What a rank says of itself, while it lives and at its end."""

    number: int = 0  # grows
    place: str = 'before training'
    error: str = ''
    follows: bool = False  # perhaps the consequence of another rank's end
    finished: bool = False
    gone: bool = False  # for the reader: it has been the latest for too long

    def __str__(self) -> str:
        if self.error:
            return f'failed in {self.place}: {self.error}'
        if self.gone:
            return (
                'no sign of life (killed, stopped or cut off), last heard of '
                f'in {self.place}'
            )
        return 'done' if self.finished else f'in {self.place}'


# Of the other ranks; None if the store, in which they tell, is silent.
Beats = dict[int, Beat] | None


class RankWatch:
    """Tell where this rank is, and look for the others when that is needed.

    That is when it has been at the same place for long, when it fails, or when
    it has been asked to end. A rank counts as gone when it has given no sign
    of life for a fifth of the timeout, at most 15 seconds.

    ``timeout`` is that of the run's collectives, in seconds; ``log`` takes a
    line.
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
                f'RankWatchHook needs a newer torch than {torch.__version__}: '
                '2.8, or set default_hooks.rank_watch=None.'
            )
        store = store.clone()
        store.set_timeout(timedelta(seconds=self.patience))
        self._store = dist.PrefixStore(_PREFIX, store)
        self._tell()
        dist.barrier()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def at(self, place: str) -> None:
        """Record where this rank is now, in words; a thread publishes it."""
        self._place = place
        self._since = time.monotonic()
        self._news.set()

    def stop(self) -> None:
        """End; the others do not take this rank for gone."""
        self._beat = replace(self._beat, finished=True)
        if self._end_thread():
            self._tell()

    def fail(self, error: BaseException) -> None:
        """Record that this rank fails, and which rank caused it."""
        follows = is_collective_error(error)
        line = str(error).strip().partition('\n')[0][:200]
        summary = f'{type(error).__name__}: {line}'
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
        # As long as it takes to tell which rank is gone.
        until = time.monotonic() + self.patience + 2 * self.period
        beats = self._look()
        while not explained(beats) and time.monotonic() < until:
            time.sleep(self.period)
            self._tell()
            beats = self._look()
        self._log(describe(beats))

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
            beats = self._look()
            if asked and explained(beats):
                self._log(
                    f'rank {self.rank} got SIGTERM and ends without a '
                    f'checkpoint, in {place}: not all ranks are there to '
                    f'agree on one. {describe(beats)}'
                )
                os._exit(RANK_LOST_STATUS)
            if stood >= self.timeout / 2 and reported_at != since:
                reported_at = since
                self._log(
                    f'rank {self.rank} has been in {place} for {stood:.0f} '
                    f'of {self.timeout:.0f} s (env_cfg.dist_cfg.timeout). '
                    f'{describe(beats)}'
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
        number = self._beat.number + 1
        self._beat = replace(self._beat, number=number, place=self._place)
        # Whoever holds the store may be gone; then so are all signs of life.
        with suppress(RuntimeError):
            self._store.set(str(self.rank), json.dumps(asdict(self._beat)))

    def _look(self) -> Beats:
        now, beats = time.monotonic(), {}
        for rank in set(range(self.world_size)) - {self.rank}:
            try:
                beat = Beat(**json.loads(self._store.get(str(rank))))
            except RuntimeError:
                return None
            if self._changed.get(rank, (None, now))[0] != beat.number:
                self._changed[rank] = beat.number, now
            silent = now - self._changed[rank][1] >= self.patience
            beats[rank] = replace(beat, gone=silent and not beat.finished)
        return beats


def describe(beats: Beats) -> str:
    """Say where the other ranks are, those that are gone or failed first."""
    if beats is None:
        agent = 'TORCHELASTIC_RUN_ID' in os.environ
        holder = 'torchrun' if agent else 'rank 0'
        return (
            f'The store of {holder}, in which the ranks tell where they '
            f'are, does not answer: {holder} is gone, stopped or cut off.'
        )
    ranks_at: dict[tuple[bool, str], list[int]] = {}
    for rank, beat in beats.items():
        well = not (beat.gone or beat.error)
        ranks_at.setdefault((well, str(beat)), []).append(rank)
    ill_first = sorted(ranks_at.items(), key=lambda item: item[0][0])
    texts = (f'{these_ranks(ranks)}: {text}' for (_, text), ranks in ill_first)
    return '; '.join(texts)


def explained(beats: Beats) -> bool:
    """Return whether the end of one of them explains that of the others."""
    return beats is None or any(
        beat.gone or (beat.error and not beat.follows)
        for beat in beats.values()
    )


def is_collective_error(error: BaseException) -> bool:
    """Return whether an error may be the consequence of another rank's end."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError)
        and any(word in str(error) for word in _COLLECTIVE_ERRORS)
    )
