# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""``bn_stats.jsonl``, a line for each look; docs/monitor.md has its fields."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from msgspec import Struct

from .json_lines import JsonLines

FILE_NAME = 'bn_stats.jsonl'

Level = Literal['error', 'warning']
LEVELS: tuple[Level, ...] = get_args(Level)


class Finding(Struct, frozen=True):
    """A finding of the monitor, which the user reads as one line.

    An error: training does not do what it should; a warning: it may not be
    what you want. Layers are in forward order, ranks those that stand out.
    """

    check: str
    level: Level
    layers: list[str]
    ranks: list[int]
    message: str

    def key(self) -> tuple:
        """Return what identifies the finding, whatever its values."""
        return self.check, self.level, tuple(self.layers), tuple(self.ranks)


class LayerRecord(Struct, frozen=True):
    """The record of a BatchNorm layer at a look; None: not known.

    Numbers are of the layer's first call in the iteration, and of the rank
    where they are largest; ``calls`` counts all.
    """

    name: str
    type: str
    state: Literal['synced', 'alone', 'eval', 'uncalled']
    ranks_per_group: int
    calls: int
    count: int
    between_share: float | None
    mean_drift: float | None
    dead_channels: int
    running_var_max: float | None


class Seconds(Struct, frozen=True):
    """Times of an iteration, and of BatchNorm's collectives in it, by rank."""

    iteration: list[float | None]
    collectives: list[float | None]


class Record(Struct, frozen=True):
    """The record of a look; layers are in the order of rank 0's calls."""

    iter: int
    epoch: int
    world_size: int
    images_per_gpu: int | None
    seconds: Seconds
    layers: list[LayerRecord]
    findings: list[Finding]


def open_record(folder: str | Path) -> JsonLines[Record]:
    """Return the record in a work dir, to be written by one process."""
    return JsonLines(Path(folder, FILE_NAME), Record, counter='iter')


def read_records(folder: str | Path) -> list[Record]:
    """Read what BNStatsMonitorHook left in a work dir, of a running job too.

    That there is none, or it is broken, is a ConfigError.
    """
    return open_record(folder).read()
