# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Which ranks are alive, and where each of them is.

A rank that is gone or stands still is seen by the others as a collective that
does not end, which says neither who nor where. Here every rank tells both, by
a thread of its own, in the key-value store by which the ranks met.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from .termination import RANK_LOST_STATUS

_PREFIX = 'megdet_rank_watch'
_LONGEST_SILENCE = 15.0  # seconds; a busy machine is silent for some
_COLLECTIVE_ERRORS = ('gloo', 'NCCL', 'Connection', 'Timed out', 'timed out')


@dataclass(frozen=True)
class Beat:
    """What a rank says of itself.

    Attributes:
        number (int): Of this sign of life; it grows while the rank lives.
        place (str): Where it is, in words.
        error (str): With which it ends; empty while it does not.
        follows (bool): Whether that error is one of a collective, and so
            perhaps the consequence of another rank's end.
        finished (bool): Whether it is done.
    """

    number: int = 0
    place: str = 'before training'
    error: str = ''
    follows: bool = False
    finished: bool = False


@dataclass(frozen=True)
class Sight:
    """A rank as another one sees it.

    Attributes:
        beat (Beat): The latest one.
        gone (bool): Whether it has been the latest for too long.
    """

    beat: Beat
    gone: bool


class RankWatch:
    """Tells where this rank is, and looks for the others when it must.

    While training goes on a rank only writes, some 150 bytes when it gets to
    another place, and every few seconds. It reads the others' when it has
    been at the same place for long, when it fails, or when it has been asked
    to end.

    A rank counts as gone when it has given no sign of life for a fifth of the
    timeout, at most 15 seconds. (So that at half of the timeout it is known.)

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
        self._changed: dict[int, tuple[int, float]] = {}
        self._news = threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; a collective, after which all ranks can be read."""
        if self.world_size == 1:
            return
        # A connection of its own: a wait in the other one would block it.
        store = _get_default_store().clone()
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
        until = time.monotonic() + self.patience + 2 * self.period
        sights = self._look()
        while follows and not _cause(sights) and time.monotonic() < until:
            time.sleep(self.period)
            self._tell()
            sights = self._look()
        if follows:
            self._log(self._describe(sights))

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
            if asked and _cause(sights):
                self._log(
                    f'rank {self.rank} got SIGTERM and ends without a '
                    f'checkpoint, in {place}: not all ranks are there to '
                    f'agree on one. {self._describe(sights)}'
                )
                os._exit(RANK_LOST_STATUS)
            if stood >= self.timeout / 2 and reported_at != since:
                reported_at = since
                self._log(
                    f'rank {self.rank} has been in {place} for {stood:.0f} '
                    f'of {self.timeout:.0f} s (env_cfg.dist_cfg.timeout). '
                    f'{self._describe(sights)}'
                )

    def _end_thread(self) -> bool:
        """Whether there was one."""
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

    def _look(self) -> dict[int, Sight] | None:
        """The other ranks; None if the store does not answer."""
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

    def _describe(self, sights: dict[int, Sight] | None) -> str:
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
            ranks_at.setdefault((well, _in_words(sight)), []).append(rank)
        # Those that are gone or have failed first.
        return '; '.join(
            f'{_ranks(ranks)}: {words}'
            for (_, words), ranks in sorted(
                ranks_at.items(), key=lambda item: item[0][0]
            )
        )


def _cause(sights: dict[int, Sight] | None) -> bool:
    """Whether a rank is to be seen whose end explains that of the others."""
    return sights is None or any(
        s.gone or (s.beat.error and not s.beat.follows)
        for s in sights.values()
    )


def _in_words(sight: Sight) -> str:
    beat = sight.beat
    if beat.error:
        return f'failed in {beat.place}: {beat.error}'
    if sight.gone:
        return (
            'no sign of life (killed, stopped or cut off), last heard of in '
            f'{beat.place}'
        )
    return 'done' if beat.finished else f'in {beat.place}'


def is_collective_error(error: BaseException) -> bool:
    """Whether an error is perhaps the consequence of another rank's end."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError)
        and any(word in str(error) for word in _COLLECTIVE_ERRORS)
    )


def _first_line(error: BaseException) -> str:
    line = (str(error).strip().splitlines() or [''])[0]
    return line if len(line) <= 200 else line[:200] + ' ...'


def _ranks(ranks: Iterable[int]) -> str:
    """'rank 3', or 'ranks 0-2, 5'."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ', '.join(f'{a}' if a == b else f'{a}-{b}' for a, b in runs)
    return f'rank {text}' if text.isdecimal() else f'ranks {text}'
