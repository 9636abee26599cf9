# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Table of what bench_sync_or_local.py has measured."""

from __future__ import annotations

import csv
import json
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

METRICS = {
    'bbox_mAP': 'bbox mAP',
    'bbox_mAP_50': 'bbox AP50',
}
HEADINGS = ['data', 'arm', *METRICS.values()]


class Row(NamedTuple):
    """All runs of one arm on one data set.

    Attributes:
        data (str): The data set.
        arm (str): The arm, or 'synced - local': the difference between runs
            of one seed.
        seeds (list[int]): The runs' seeds.
        values (dict[str, list[float]]): For each metric the runs' values, in
            the order of ``seeds``.
    """

    data: str
    arm: str
    seeds: list[int]
    values: dict[str, list[float]]

    def mean(self, metric: str) -> float:
        """Mean of a metric over the seeds."""
        return fmean(self.values[metric])


def summarise(results: list[dict]) -> list[Row]:
    """Gather runs into rows, data set by data set.

    Args:
        results (list[dict]): One for each run: ``data``, ``arm``, ``seed``
            and ``metrics``.

    Returns:
        list[Row]: One for each arm, and the difference between the arms
        'synced' and 'local' where they have seeds in common.
    """
    rows = []
    for data in dict.fromkeys(r['data'] for r in results):
        arms: dict[str, dict[int, dict]] = {}
        for result in results:
            if result['data'] == data:
                runs = arms.setdefault(result['arm'], {})
                runs[result['seed']] = result['metrics']
        rows += [_row(data, arm, runs) for arm, runs in arms.items()]
        synced, local = arms.get('synced', {}), arms.get('local', {})
        gains = {
            seed: {m: v - local[seed][m] for m, v in synced[seed].items()}
            for seed in synced
            if seed in local
        }
        if gains:
            rows.append(_row(data, 'synced - local', gains))
    return rows


def _row(data: str, arm: str, runs: dict[int, dict]) -> Row:
    values = {
        metric: [metrics[metric] for metrics in runs.values()]
        for metric in METRICS
    }
    return Row(data, arm, list(runs), values)


def cells(row: Row) -> list[str]:
    """A row of the table: for each metric, mean and value of each seed."""
    number = '{:+.3f}' if ' - ' in row.arm else '{:.3f}'
    shown = [row.data, row.arm]
    for metric in METRICS:
        seeds = ', '.join(map(number.format, row.values[metric]))
        shown.append(f'{number.format(row.mean(metric))} ({seeds})')
    return shown


def print_table(rows: list[Row]) -> None:
    """Print all rows, one section for each data set."""
    table = Table(caption='mean over the seeds, and in brackets each of them')
    for name in HEADINGS:
        table.add_column(name, no_wrap=True)
    for _, section in groupby(rows, lambda row: row.data):
        for row in section:
            table.add_row(*cells(row))
        table.add_section()
    console = Console()
    if not console.is_terminal:
        # A file has no width to fit.
        console = Console(width=160)
    console.print(table)


def save(rows: list[Row], results: list[dict], folder: Path) -> None:
    """Write the table as Markdown and JSON, and the runs as CSV."""
    lines = [HEADINGS, ['---'] * len(HEADINGS), *map(cells, rows)]
    text = ''.join(f'| {" | ".join(line)} |\n' for line in lines)
    (folder / 'sync_or_local.md').write_text(text)
    content = [
        row._asdict() | dict(means={m: row.mean(m) for m in row.values})
        for row in rows
    ]
    (folder / 'sync_or_local.json').write_text(json.dumps(content, indent=1))
    names = ['data', 'arm', 'seed', 'seconds', *METRICS]
    with (folder / 'sync_or_local.csv').open('w', newline='') as file:
        writer = csv.DictWriter(file, names, extrasaction='ignore')
        writer.writeheader()
        writer.writerows(r | r['metrics'] for r in results)
    print(f'Written to {folder}: sync_or_local.md, .json, .csv')
