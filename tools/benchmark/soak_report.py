# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What ``soak.py`` compares and shows."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.table import Table
from soak_run import FAULTS, Fault

MIB = 1 << 20
FIRST, LATER = 100, 1000
# How much a process may grow. Allocators keep room to spare. MMEngine keeps
# every logged number, 16 bytes each. Batches on their way from the workers are
# shared memory, and so open files.
RESIDENT_LIMIT = 64 * MIB
RESIDENT_LIMIT_PER_ITERATION = 256
FILES_LIMIT = 8


class Sample(NamedTuple):
    """What a process took after some iterations since its start."""

    iterations: int
    resident: int
    open_files: int


class Growth(NamedTuple):
    """From iteration ``FIRST`` of a process to its last measurement.

    Attributes:
        rank (int): Of the process.
        iterations (int): Of the last measurement, ``LATER`` or more.
        resident (int): Bytes.
        open_files (int): Number.
    """

    rank: int
    iterations: int
    resident: int
    open_files: int


def read_samples(folder: Path) -> dict[int, list[list[Sample]]]:
    """The samples of each rank's processes, in the order of their start."""
    found = {}
    for path in sorted(folder.glob('resources_*.jsonl')):
        processes: dict[int, list[Sample]] = defaultdict(list)
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            process = entry.pop('process')
            if entry['iterations'] == FIRST:
                processes.pop(process, None)  # a number that came again
            processes[process].append(Sample(**entry))
        found[int(path.stem.rpartition('_')[2])] = list(processes.values())
    return found


def growths(samples: dict[int, list[list[Sample]]]) -> list[Growth]:
    """Of the processes that were there for ``LATER`` iterations."""
    return [
        Growth(
            rank,
            last.iterations,
            last.resident - first.resident,
            last.open_files - first.open_files,
        )
        for rank, processes in samples.items()
        for first, *_, last in (p for p in processes if len(p) > 1)
        if last.iterations >= LATER
    ]


def shown_samples(process: list[Sample]) -> list[Sample]:
    """At 100, 1,000, ... and 200, 500, ... iterations, and the last."""
    leading = ('1', '2', '5')
    return [
        sample
        for sample in process
        if str(sample.iterations).rstrip('0') in leading
        or sample is process[-1]
    ]


def resource_table(samples: dict[int, list[list[Sample]]]) -> Table:
    """What the ranks of the undisturbed run took."""
    table = Table(title='Resident size (MiB) and open files, undisturbed')
    table.add_column('after iteration', justify='right')
    for rank in samples:
        table.add_column(f'rank {rank}', justify='right')
        table.add_column('files', justify='right')
    columns = [shown_samples(processes[0]) for processes in samples.values()]
    for row in zip(*columns, strict=True):
        cells = [f'{row[0].iterations:,}']
        for sample in row:
            cells += [f'{sample.resident / MIB:.1f}', str(sample.open_files)]
        table.add_row(*cells)
    return table


def differences(first: Path, second: Path) -> list[str]:
    """Where two checkpoints differ in a bit: names, with their parts.

    Weights and buffers, the optimizer's and the schedulers' state, and the
    loss of every iteration.
    """
    ours, theirs = (_leaves(_compared(torch.load(p))) for p in (first, second))
    missing = sorted(ours.keys() ^ theirs.keys())
    both = [name for name in ours if name in theirs]
    return missing + [n for n in both if not _same(ours[n], theirs[n])]


def judge(
    different: list[str], grown: list[Growth], faults: list[Fault]
) -> list[str]:
    """What went wrong, a line each; nothing if all went well."""
    wrong = [f'different: {name}' for name in different]
    wrong += [
        f'SIGTERM left no checkpoint inside the epoch: {fault}'
        for fault in faults
        if fault.signal == 'SIGTERM'
        and not fault.checkpoint.startswith('iter_')
    ]
    for growth in grown:
        limit = RESIDENT_LIMIT
        limit += RESIDENT_LIMIT_PER_ITERATION * growth.iterations
        if growth.resident > limit or growth.open_files > FILES_LIMIT:
            wrong.append(f'grown: {describe(growth)}')
    return wrong


def describe(growth: Growth) -> str:
    """A growth in words."""
    return (
        f'rank {growth.rank}, from iteration {FIRST} to '
        f'{growth.iterations:,}: {growth.resident / MIB:+.1f} MiB, '
        f'{growth.open_files:+d} open files'
    )


def run_table(result: dict) -> Table:
    """The two trainings side by side, from what soak.json holds."""
    table = Table('', 'undisturbed', 'with faults', caption=result['run'])
    runs = [result['undisturbed'], result['with faults']]
    table.add_row('iterations', *[f'{result["iterations"]:,}'] * 2)
    table.add_row('seconds', *(f'{run["seconds"]:.0f}' for run in runs))
    table.add_row('starts', *(str(run['starts']) for run in runs))
    for name in FAULTS:
        times = [f['seconds'] for f in result['faults'] if f['signal'] == name]
        text = f'{len(times)}'
        if times:
            text += f', all ended in {min(times):.1f} to {max(times):.1f} s'
        table.add_row(name, '0', text)
    return table


def verdict(wrong: list[str], grown: list[Growth]) -> str:
    """The last lines."""
    lines = [
        'Weights, optimizer, schedules and losses are the same to the bit.'
    ]
    if any(line.startswith('different') for line in wrong):
        lines = []
    if grown:
        most = max(grown, key=lambda growth: growth.resident)
        lines.append(
            f'{len(grown)} processes trained for {LATER:,} iterations or '
            f'more. Grown most: {describe(most)}.'
        )
    else:
        lines.append(
            f'No process trained for {LATER:,} iterations, so growth was not '
            'measured.'
        )
    return '\n'.join(lines + wrong)


def _compared(checkpoint: dict) -> dict[str, Any]:
    parts = ('state_dict', 'optimizer', 'param_schedulers')
    losses = checkpoint['message_hub']['log_scalars']['train/loss']
    return {part: checkpoint[part] for part in parts} | dict(
        iterations=checkpoint['meta']['iter'], losses=losses.data[0]
    )


def _leaves(nest: Any, place: str = '') -> dict[str, Any]:
    if isinstance(nest, dict):
        pairs = list(nest.items())
    elif isinstance(nest, list | tuple):
        pairs = list(enumerate(nest))
    else:
        return {place: nest}
    return {
        name: leaf
        for key, value in pairs
        for name, leaf in _leaves(value, f'{place}.{key}').items()
    }


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, np.ndarray):
        return np.array_equal(first, second)
    return first == second
