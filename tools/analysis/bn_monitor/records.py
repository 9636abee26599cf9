# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Reading the ``bn_stats.jsonl`` that BNStatsMonitorHook writes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

FILE = 'bn_stats.jsonl'
VERSION = 1
LEVELS = ('error', 'warning', 'info')


@dataclasses.dataclass(frozen=True)
class Layer:
    """A BatchNorm layer in a monitored iteration; None: not to be had.

    Attributes:
        name (str): Name in the model.
        type (str): Name of its class.
        state (str): 'synced', 'alone', 'eval' or 'uncalled'.
        ranks_per_group (int): Ranks that share their statistics.
        calls (int): Training forwards in the iteration.
        count (int): Values per channel in the group.
        between_share (float, optional): Share of the group's variance that
            lies between the ranks' means, 0 to 1.
        var_spread (float, optional): Standard deviation over ranks of local
            over group variance.
        mean_drift (float, optional): Batch mean minus running_mean, in
            running standard deviations, root mean square over channels.
        var_drift (float, optional): Log of batch variance over running_var,
            root mean square over channels.
        dead_channels (int): Channels without variance.
        running_var_max (float, optional): Largest running_var.
        collective_seconds (list): Seconds in collectives, per rank.
    """

    name: str
    type: str
    state: str
    ranks_per_group: int
    calls: int
    count: int
    between_share: float | None
    var_spread: float | None
    mean_drift: float | None
    var_drift: float | None
    dead_channels: int
    running_var_max: float | None
    collective_seconds: list[float | None]


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        check (str): Name of the check.
        level (str): 'error', 'warning' or 'info'.
        layers (list[str]): Layers concerned.
        ranks (list[int]): Ranks concerned.
        message (str): One line, with the remedy.
    """

    check: str
    level: str
    layers: list[str]
    ranks: list[int]
    message: str

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f'level={self.level!r} is none of {LEVELS}')


@dataclasses.dataclass(frozen=True)
class Plan:
    """The batch that the training was set up for.

    Attributes:
        total_batch_size (int, optional): Images per optimizer update.
        accumulative_counts (int): Iterations per optimizer update.
        bn_sizes (dict[str, int]): Number of layers per BN size.
    """

    total_batch_size: int | None
    accumulative_counts: int
    bn_sizes: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Seconds:
    """Times of a monitored iteration, one number a rank.

    Attributes:
        iteration (list): The iteration.
        collectives (list): All BatchNorm layers' collectives.
    """

    iteration: list[float | None]
    collectives: list[float | None]


@dataclasses.dataclass(frozen=True)
class Record:
    """A monitored iteration.

    Attributes:
        iter (int): Iterations completed, counted from 1.
        epoch (int): Epoch, counted from 1.
        world_size (int): Number of ranks.
        images_per_gpu (int, optional): Images per GPU.
        seconds (Seconds): Times.
        plan (Plan): The batch.
        layers (list[Layer]): Layers in forward order.
        findings (list[Finding]): What the checks found.
    """

    iter: int
    epoch: int
    world_size: int
    images_per_gpu: int | None
    seconds: Seconds
    plan: Plan
    layers: list[Layer]
    findings: list[Finding]

    def __post_init__(self) -> None:
        for times in (self.seconds.iteration, self.seconds.collectives):
            if len(times) != self.world_size:
                raise ValueError(
                    f'{len(times)} times for world_size={self.world_size}'
                )


def read_records(work_dir: str | Path) -> tuple[list[Record], str | None]:
    """Read what the hook left in a work dir, of a running job too.

    Where the iterations go back, a training was repeated from there on: the
    later records replace the earlier ones.

    Args:
        work_dir (str | Path): Work dir of the Runner.

    Returns:
        tuple: The records in the order of their iterations, and what was
        left out, None where it was nothing.

    Raises:
        FileNotFoundError: If the folder or the file does not exist.
        ValueError: If the file holds no record, a line is broken, or was
            written in another format.
    """
    work_dir = Path(work_dir)
    if not work_dir.is_dir():
        raise FileNotFoundError(f'{work_dir}: no such folder.')
    path = work_dir / FILE
    if not path.is_file():
        raise FileNotFoundError(
            f'{path}: no such file. Add default_hooks = dict(bn_stats='
            "dict(type='BNStatsMonitorHook', interval=100)) to the config; "
            'the first iteration then writes it.'
        )
    # Not splitlines(), to which other characters end a line as well.
    *lines, last = path.read_bytes().split(b'\n')
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        record = _record(line, f'{path}, line {number}')
        while records and records[-1].iter >= record.iter:
            records.pop()
        records.append(record)
    note = None
    if last:
        note = f'{path}: the last line is not complete yet: left out.'
    if not records:
        raise ValueError(
            f'{path} holds no complete record yet: has the first iteration '
            'passed?'
        )
    return records, note


def forward_order(records: list[Record]) -> list[str]:
    """All layers' names, each once, in the order of the forward pass.

    A layer that appears later stands behind the one before it in its record.
    """
    order: list[str] = []
    for record in records:
        place = 0
        for layer in record.layers:
            if layer.name not in order:
                order.insert(place, layer.name)
            place = order.index(layer.name) + 1
    return order


def by_layer(records: list[Record], field: str) -> np.ndarray:
    """One of the layers' numbers, over all records.

    Args:
        records (list[Record]): Records.
        field (str): The name of a number of :class:`Layer`.

    Returns:
        np.ndarray: Layers in forward order x records, float64; NaN where
        there is no number.
    """
    rows = {name: row for row, name in enumerate(forward_order(records))}
    values = np.full((len(rows), len(records)), np.nan)
    for column, record in enumerate(records):
        for layer in record.layers:
            values[rows[layer.name], column] = _number(getattr(layer, field))
    return values


def by_rank(records: list[Record], field: str) -> np.ndarray:
    """One of the ranks' times, over all records.

    Args:
        records (list[Record]): Records.
        field (str): A name of :class:`Seconds`.

    Returns:
        np.ndarray: Seconds, ranks x records, float64; NaN where there is no
        number or no such rank.
    """
    values = np.full(
        (max(r.world_size for r in records), len(records)), np.nan
    )
    for column, record in enumerate(records):
        for rank, seconds in enumerate(getattr(record.seconds, field)):
            values[rank, column] = _number(seconds)
    return values


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def _record(line: bytes, place: str) -> Record:
    try:
        data = json.loads(line, parse_constant=_refuse)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        start = line[:60].decode(errors='replace')
        raise ValueError(
            f'{place}: not a JSON object: {start!r}. '
            'Remove the line to plot the rest.'
        )
    if data.get('version') != VERSION:
        raise ValueError(
            f'{place}: written in version {data.get("version")!r} of the '
            f'format, and this tool reads version {VERSION}. Use the tool '
            'of the mmdet_megdet that trained.'
        )
    try:
        return _take(
            Record,
            data,
            seconds=_take(Seconds, data['seconds']),
            plan=_take(Plan, data['plan']),
            layers=[_take(Layer, layer) for layer in data['layers']],
            findings=[_take(Finding, found) for found in data['findings']],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f'{place}: not a record of BNStatsMonitorHook: {error!r}. '
            'Remove the line to plot the rest.'
        ) from error


def _take(kind: type, data: dict, **made):
    # A record may hold more than this tool knows.
    names = [field.name for field in dataclasses.fields(kind)]
    return kind(**{n: made[n] if n in made else data[n] for n in names})


def _refuse(constant: str):
    raise ValueError(f'{constant} is no JSON')
