# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""``bn_stats.jsonl``: what a line says, how it is written, and read again."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, get_args

from ..errors import ConfigError

FILE_NAME = 'bn_stats.jsonl'
VERSION = 1

Level = Literal['error', 'warning', 'info']
LEVELS: tuple[Level, ...] = get_args(Level)

_Part = TypeVar('_Part')


@dataclass(frozen=True)
class Finding:
    """Something that a person should know, in one line.

    Attributes:
        check (str): Name of the check, as 'call-order'.
        level (str): 'error': training does not do what it should;
            'warning': it may not be what you want; 'info'.
        layers (list[str]): Names, in forward order.
        ranks (list[int]): Those that stand out; empty if none does.
        message (str): Layers, ranks, values, and the remedy.
    """

    check: str
    level: Level
    layers: list[str]
    ranks: list[int]
    message: str

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f'level={self.level!r} is none of {LEVELS}')

    def key(self) -> tuple:
        """Return what makes it another finding: not its values."""
        return self.check, self.level, tuple(self.layers), tuple(self.ranks)


@dataclass(frozen=True)
class LayerRecord:
    """A BatchNorm layer in a monitored iteration; None: not known.

    Numbers are of the layer's first call, and of the rank where they are
    largest.

    Attributes:
        name (str): Name in the model.
        type (str): Name of its class.
        state (str): 'synced'; 'alone', if it normalised by each rank's own
            batch; 'eval', by its running statistics; or 'uncalled', on every
            rank.
        ranks_per_group (int): Ranks that share statistics.
        calls (int): In the iteration, without recomputations.
        count (int): Positions of a channel in the group.
        between_share (float, optional): Share of the group's variance that
            lies between the ranks' means, 0 to 1.
        var_spread (float, optional): Rms over ranks and channels of local
            variance over the group's, minus 1.
        mean_drift (float, optional): Batch mean minus running mean, in
            running standard deviations, rms over channels.
        var_drift (float, optional): Log of batch variance over running
            variance, rms over channels.
        dead_channels (int): Channels that are constant on all ranks.
        running_var_max (float, optional): Largest running variance.
        collective_seconds (list): Of each rank, forward and backward.
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


@dataclass(frozen=True)
class Plan:
    """The batch that the training was set up for.

    Attributes:
        total_batch_size (int, optional): Images of an optimizer update.
        accumulative_counts (int): Iterations of an optimizer update.
        bn_sizes (dict[str, int]): Number of layers by BN size in images;
            'all' for those of all ranks.
    """

    total_batch_size: int | None
    accumulative_counts: int
    bn_sizes: dict[str, int]


@dataclass(frozen=True)
class Seconds:
    """Times of a monitored iteration, one number a rank.

    Attributes:
        iteration (list): The iteration.
        collectives (list): All BatchNorm layers' collectives in it.
    """

    iteration: list[float | None]
    collectives: list[float | None]


@dataclass(frozen=True)
class Record:
    """A monitored iteration: a line of the file.

    Attributes:
        iter (int): Iterations done, this one included.
        epoch (int): Epoch that it belongs to, from 1.
        world_size (int): Number of ranks.
        images_per_gpu (int, optional): None where it is not known.
        seconds (Seconds): Times.
        plan (Plan): The batch.
        layers (list[LayerRecord]): In the order in which rank 0 calls them.
        findings (list[Finding]): What the checks found, errors first.
    """

    iter: int
    epoch: int
    world_size: int
    images_per_gpu: int | None
    seconds: Seconds
    plan: Plan
    layers: list[LayerRecord]
    findings: list[Finding]

    def __post_init__(self) -> None:
        for times in (self.seconds.iteration, self.seconds.collectives):
            if len(times) != self.world_size:
                raise ValueError(
                    f'{len(times)} times for world_size={self.world_size}'
                )

    def as_json(self) -> dict[str, Any]:
        """Return the line's object."""
        return asdict(self)


class JsonLines:
    """Lines of JSON in a file that a killed run leaves whole.

    A line is written at once and closed; numbers have six digits, and what
    is not finite is null. One process writes.

    Args:
        folder (Path): Where the file is, or will be.
        name (str): The file's. Defaults to 'bn_stats.jsonl'.
        counter (str): Under which name a line has the number of iterations
            done. Defaults to 'iter'.
    """

    def __init__(
        self, folder: Path, name: str = FILE_NAME, counter: str = 'iter'
    ) -> None:
        self.path = Path(folder) / name
        self._counter = counter

    def resume(self, iteration: int) -> None:
        """Keep the lines up to an iteration, from which the run goes on.

        What came after it is done again, and a line that was cut off never
        was. The file is replaced as a whole or not at all.

        Args:
            iteration (int): Iterations completed; 0 for a run that starts
                anew, which begins the file anew.
        """
        if not self.path.is_file():
            return
        temporary = self.path.with_suffix('.tmp')
        with self.path.open('rb') as old, temporary.open('wb') as new:
            new.writelines(
                line for line in old if self._keeps(line, iteration)
            )
        os.replace(temporary, self.path)

    def append(self, content: dict[str, Any]) -> None:
        """Write one iteration's object, with the format's version."""
        content = dict(version=VERSION, **content)
        line = json.dumps(_plain(content), allow_nan=False)
        with self.path.open('a', encoding='utf-8') as file:
            file.write(line + '\n')

    def _keeps(self, line: bytes, iteration: int) -> bool:
        try:
            done = json.loads(line)[self._counter]
            return line.endswith(b'\n') and done <= iteration
        except (ValueError, KeyError, TypeError):
            return False


def read_records(folder: str | Path) -> list[Record]:
    """Read what BNStatsMonitorHook left in a work dir, of a running job too.

    A last line that is not complete yet is left out. Where the iterations go
    back, a training was repeated from there on: the later records replace
    the earlier ones.

    Args:
        folder (str | Path): Work dir of the Runner.

    Returns:
        list[Record]: At least one, in the order of their iterations.

    Raises:
        ConfigError: If there is no such folder or file, the file holds no
            record, a line is broken, or was written in another format.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f'{folder}: no such folder.')
    path = folder / FILE_NAME
    if not path.is_file():
        raise ConfigError(
            f'{path}: no such file. Add default_hooks = dict(bn_stats='
            "dict(type='BNStatsMonitorHook', interval=100)) to the config; "
            'the first iteration then writes it.'
        )
    # Not splitlines(), to which other characters end a line as well.
    *lines, _ = path.read_bytes().split(b'\n')
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        record = _record(line, f'{path}, line {number}')
        while records and records[-1].iter >= record.iter:
            records.pop()
        records.append(record)
    if not records:
        raise ConfigError(
            f'{path} holds no complete record yet: has the first iteration '
            'passed?'
        )
    return records


def _record(line: bytes, place: str) -> Record:
    try:
        data = json.loads(line, parse_constant=_refuse)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        start = line[:60].decode(errors='replace')
        raise ConfigError(
            f'{place}: not a JSON object: {start!r}. Remove the line to read '
            'the rest.'
        )
    if data.get('version') != VERSION:
        raise ConfigError(
            f'{place}: written in version {data.get("version")!r} of the '
            f'format, and version {VERSION} is read. Use the mmdet_megdet '
            'that trained.'
        )
    try:
        return _take(
            Record,
            data,
            seconds=_take(Seconds, data['seconds']),
            plan=_take(Plan, data['plan']),
            layers=[_take(LayerRecord, layer) for layer in data['layers']],
            findings=[_take(Finding, found) for found in data['findings']],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f'{place}: not a record of BNStatsMonitorHook: {error!r}. Remove '
            'the line to read the rest.'
        ) from error


def _take(kind: type[_Part], data: dict[str, Any], **made: Any) -> _Part:
    # A later version may write more than this one knows.
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{n: made[n] if n in made else data[n] for n in names})


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f'{constant} is no JSON')


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f'{value:.6g}') if math.isfinite(value) else None
    return value
