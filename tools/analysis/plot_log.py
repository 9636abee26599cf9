# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Plot learning rate, losses and validation AP of a training run.

Reads what the stock Runner writes, ``WORK_DIR/<timestamp>/vis_data/``. The
latest run is shown; if it resumed an earlier one, that one is put before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from figures import save, work_dir_parser
from matplotlib.figure import Figure
from mmengine.config import Config

from mmdet_megdet.cli import run_tool
from mmdet_megdet.errors import ConfigError

# By panel: names of its curves.
PANELS = {
    'learning rate': re.compile(r'(.*\.)?lr'),
    'loss': re.compile(r'(.*\.)?loss[^.]*'),
    'validation AP': re.compile(r'.*mAP(_50|_75)?'),
}
# x values and y values by name.
Curves = dict[str, tuple[list[int], list[float]]]


def load_work_dir(work_dir: Path) -> list[dict]:
    """Load the records of the latest run and of those that it resumed.

    Raises:
        ConfigError: If no training has logged anything there, or a line is
            broken.
    """
    records: list[dict] = []
    # Names are timestamps: their order is that of the runs.
    for path in sorted(work_dir.glob('*/vis_data/scalars.json')):
        found = _read(path)
        start = next((record for record in found if 'iter' in record), None)
        if start is None:
            continue
        if not _resumed(path):
            records = []
        # Of what a resumed run makes again, the later one rules. (A
        # validation's step is its epoch where epochs are counted.)
        first = start.get('epoch', start['iter'])
        records = [
            record
            for record in records
            if (
                record['iter'] < start['iter']
                if 'iter' in record
                else record['step'] < first
            )
        ]
        records += found
    if not records:
        raise ConfigError(
            f'{work_dir} holds no */vis_data/scalars.json with training '
            'records: is it the work dir of a training run, and has the first '
            'log interval passed?'
        )
    return records


def _read(path: Path) -> list[dict]:
    """Read one JSON object a line; the last may be cut off, still written."""
    records = []
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise ConfigError(
                    f'{path}, line {number}: not a JSON object: {line[:60]!r}.'
                    ' Remove the line to plot the rest.'
                ) from None
    return records


def _resumed(path: Path) -> bool:
    config = path.with_name('config.py')
    return config.exists() and bool(
        Config.fromfile(config, import_custom_modules=False).get('resume')
    )


def curves_of(records: list[dict], names: re.Pattern) -> Curves:
    """Return the curves of fitting names."""
    curves: Curves = {}
    for record in records:
        for name in filter(names.fullmatch, record):
            steps, values = curves.setdefault(name, ([], []))
            steps.append(record.get('iter', record['step']))
            values.append(record[name])
    return curves


def draw(records: list[dict], title: str) -> Figure:
    """Draw the panels that have curves below each other."""
    panels = {label: curves_of(records, n) for label, n in PANELS.items()}
    shown = {label: curves for label, curves in panels.items() if curves}
    size = 9, 3 * len(shown) + 0.5
    figure = Figure(figsize=size, layout='constrained')
    figure.suptitle(title)
    for row, (label, curves) in enumerate(shown.items(), 1):
        axis = figure.add_subplot(len(shown), 1, row, ylabel=label)
        for name, curve in curves.items():
            axis.plot(*curve, '.-', label=name)
        validates = label == 'validation AP'
        axis.set_xlabel('epoch, or update' if validates else 'iteration')
        axis.set_yscale('log' if label == 'loss' else 'linear')
        axis.grid(alpha=0.3)
        axis.legend(loc='center left', bbox_to_anchor=(1, 0.5), fontsize=8)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """Plot a work dir."""
    args = work_dir_parser(__doc__, 'log.png').parse_args(argv)
    records = load_work_dir(args.work_dir)
    out = args.out or args.work_dir / 'log.png'
    save(draw(records, args.work_dir.resolve().name), out)
    print(f'wrote {out}')


if __name__ == '__main__':
    run_tool(main)
