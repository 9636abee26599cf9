# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Table and image of what bench_sync_bn.py has measured."""

from __future__ import annotations

import csv
import json
from itertools import groupby
from pathlib import Path

import matplotlib

matplotlib.use('Agg')

import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

# Heading and how a row fills it. The last three are there on GPUs alone.
COLUMNS = {
    'ranks': '{world_size}',
    'input': '{shape}',
    'layer': '{layer}',
    'forward\nms': '{forward_ms:.2f}',
    'backward\nms': '{backward_ms:.2f}',
    'both\nms': '{both_ms:.2f}',
    'both\nx plain': '{both_to_plain:.2f}',
    'both\nx textbook': '{both_to_textbook:.2f}',
    'peak\nMiB': '{peak_mib:.4g}',
    'peak\nx plain': '{peak_to_plain:.2f}',
    'bytes sent\nthere + back': '{sent_forward_bytes} + {sent_backward_bytes}',
}
CUDA_COLUMNS = {
    'copy\nbandwidth': '{bandwidth_share:.0%}',
    'host\nsyncs': '{host_syncs}',
    'graph\nreplay ms': '{replay}',
}


def print_table(rows: list[dict], caption: str) -> None:
    """Print all rows, one section for each input and number of ranks."""
    columns = dict(COLUMNS)
    if 'host_syncs' in rows[0]:
        columns |= CUDA_COLUMNS
    table = Table(caption=caption)
    for heading in columns:
        text = heading in ('input', 'layer')
        table.add_column(
            heading, justify='left' if text else 'right', no_wrap=True
        )
    for _, section in groupby(rows, _input_of):
        for row in section:
            shown = dict(row, replay=_replay(row))
            table.add_row(*(c.format(**shown) for c in columns.values()))
        table.add_section()
    console = Console()
    if not console.is_terminal:
        # A file has no width to fit.
        console = Console(width=160)
    console.print(table)


def save(rows: list[dict], caption: str, folder: Path) -> None:
    """Write ``sync_bn.csv``, ``sync_bn.json`` and ``sync_bn.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / 'sync_bn.csv').open('w', newline='') as file:
        writer = csv.DictWriter(file, fieldnames=rows[0])
        writer.writeheader()
        writer.writerows(rows)
    content = dict(run=caption, rows=rows)
    (folder / 'sync_bn.json').write_text(json.dumps(content, indent=1))
    draw(rows, caption, folder / 'sync_bn.png')
    print(f'Written to {folder}: sync_bn.csv, sync_bn.json, sync_bn.png')


def draw(rows: list[dict], caption: str, path: Path) -> None:
    """One panel for each number of ranks, one group of bars an input.

    A bar's height is its time by the plain layer's, so that inputs of all
    sizes can be compared: forward below, backward on top.
    """
    panels = [list(p) for _, p in groupby(rows, lambda r: r['world_size'])]
    figure, axes = plt.subplots(
        1,
        len(panels),
        squeeze=False,
        sharey=True,
        figsize=(7 * len(panels), 5),
        layout='constrained',
    )
    for axis, panel in zip(axes[0], panels, strict=True):
        groups = [list(g) for _, g in groupby(panel, _input_of)]
        width = 0.8 / len(groups[0])
        for number, name in enumerate(row['layer'] for row in groups[0]):
            own = [group[number] for group in groups]
            plain = [group[0]['both_ms'] for group in groups]
            x = [place + number * width for place in range(len(groups))]
            below = [
                r['forward_ms'] / p for r, p in zip(own, plain, strict=True)
            ]
            above = [
                r['backward_ms'] / p for r, p in zip(own, plain, strict=True)
            ]
            colour = f'C{number}'
            axis.bar(x, below, width, color=colour, label=f'{name}: forward')
            axis.bar(
                x,
                above,
                width,
                bottom=below,
                color=colour,
                alpha=0.5,
                label=f'{name}: backward',
            )
            for place, height, row in zip(x, below, own, strict=True):
                top = height + above[x.index(place)]
                axis.annotate(
                    f'{row["both_ms"]:.3g}',
                    (place, top),
                    ha='center',
                    va='bottom',
                    fontsize=8,
                )
        middle = 0.4 - width / 2
        axis.set_xticks(
            [place + middle for place in range(len(groups))],
            [group[0]['shape'] for group in groups],
        )
        axis.set_title(f'{panel[0]["world_size"]} rank(s)')
        axis.grid(axis='y', alpha=0.3)
        axis.set_axisbelow(True)
    axes[0][0].set_ylabel("time by plain BatchNorm's (on the bars: ms)")
    axes[0][0].legend(fontsize=8)
    figure.suptitle(caption, fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _input_of(row: dict) -> tuple[int, str]:
    return row['world_size'], row['shape']


def _replay(row: dict) -> str:
    value = row.get('graph_replay_ms')
    return 'none' if value is None else f'{value:.2f}'
