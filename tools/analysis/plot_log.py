# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Plot learning rate, losses and validation AP of a training run.

Reads what the stock Runner writes, ``WORK_DIR/<timestamp>/vis_data/``. The
latest run is shown; if it resumed an earlier one, that one is put before it.

Example::

    python tools/analysis/plot_log.py work_dirs/shapes_r18_fpn
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import matplotlib

matplotlib.use('Agg')

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from mmengine.config import Config

from mmdet_megdet.errors import ConfigError

METRIC = re.compile(r'mAP(_50|_75)?$')

# A curve: x values and y values.
Curve = tuple[list[int], list[float]]


class Curves(NamedTuple):
    """What is plotted, by name.

    Attributes:
        rates (dict[str, Curve]): Learning rates over iterations.
        losses (dict[str, Curve]): Losses over iterations.
        metrics (dict[str, Curve]): Validation AP over epochs.
        by_epoch (bool): Whether the run counts epochs. Otherwise the metrics'
            x values are the logger's steps.
    """

    rates: dict[str, Curve]
    losses: dict[str, Curve]
    metrics: dict[str, Curve]
    by_epoch: bool


def load_work_dir(work_dir: str | Path) -> list[dict]:
    """Load the records of the latest run and of those that it resumed.

    Args:
        work_dir (str | Path): Work dir of the Runner.

    Returns:
        list[dict]: Records of training and validation.

    Raises:
        ConfigError: If there is no such folder, no training has logged
            anything in it, or a line is broken.
    """
    work_dir = Path(work_dir)
    if not work_dir.is_dir():
        raise ConfigError(f'{work_dir}: no such folder.')
    # Names are timestamps: their order is that of the runs.
    paths = sorted(work_dir.glob('*/vis_data/scalars.json'), reverse=True)
    records: list[dict] = []
    for path in paths:
        earlier = _read(path)
        if not any(map(_is_training, earlier)):
            continue
        records = join(earlier, records)
        config = path.with_name('config.py')
        if not config.exists() or not Config.fromfile(
            config, import_custom_modules=False
        ).get('resume'):
            break
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


def join(earlier: list[dict], later: list[dict]) -> list[dict]:
    """Put a resumed run behind the one it resumed; the later one rules.

    Args:
        earlier (list[dict]): Records of the earlier run.
        later (list[dict]): Records of the later run; may be empty.

    Returns:
        list[dict]: The earlier records up to the later run's start, then the
        later ones.
    """
    start = next(filter(_is_training, later), None)
    if start is None:
        return earlier
    # A validation's step is its epoch where epochs are counted.
    first = start.get('epoch', start['iter'])
    kept = [
        record
        for record in earlier
        if (
            record['iter'] < start['iter']
            if _is_training(record)
            else record['step'] < first
        )
    ]
    return kept + later


def _is_training(record: dict) -> bool:
    return 'iter' in record


def extract(records: list[dict]) -> Curves:
    """Sort records, as :func:`load_work_dir` returns them, into curves."""
    by_epoch = any('epoch' in r for r in records if _is_training(r))
    curves = Curves({}, {}, {}, by_epoch)
    for record in records:
        training = _is_training(record)
        for name, value in record.items():
            last = name.split('.')[-1]
            if training and last == 'lr':
                group = curves.rates
            elif training and last.startswith('loss'):
                group = curves.losses
            elif not training and METRIC.search(name):
                group = curves.metrics
            else:
                continue
            steps, values = group.setdefault(name, ([], []))
            steps.append(record['iter' if training else 'step'])
            values.append(value)
    return curves


def lr_scale(rates: dict[str, Curve]) -> str:
    """Choose the axis for the learning rate: 'linear' or 'log'.

    A linear axis shows a linear warm-up as the straight line that it is. A
    logarithmic one is better where more than a quarter of the points would
    lie flat on the bottom, below a fiftieth of the peak.
    """
    values = [value for _, curve in rates.values() for value in curve]
    if not values or min(values) <= 0:
        return 'linear'
    low = sum(value < max(values) / 50 for value in values)
    return 'log' if low > len(values) / 4 else 'linear'


def draw(curves: Curves, title: str) -> Figure:
    """Draw the curves below each other."""
    rows = 3 if curves.metrics else 2
    figure, axes = plt.subplots(
        rows, 1, figsize=(9, 3 * rows + 0.5), layout='constrained'
    )
    figure.suptitle(title)
    axes[1].sharex(axes[0])
    _plot(axes[0], curves.rates, 'learning rate')
    axes[0].set_yscale(lr_scale(curves.rates))
    _plot(axes[1], curves.losses, 'loss (log scale)')
    axes[1].set_yscale('log')
    for axis in axes[:2]:
        axis.set_xlabel('iteration')
    if curves.metrics:
        _plot(axes[2], curves.metrics, 'validation AP (0 to 1)', marker='o')
        axes[2].set_ylim(0, 1)
        axes[2].set_xlabel('epoch' if curves.by_epoch else 'step as logged')
        axes[2].xaxis.set_major_locator(
            MaxNLocator(integer=True, min_n_ticks=1)
        )
    return figure


def _plot(
    axis: Axes, group: dict[str, Curve], label: str, **style: Any
) -> None:
    for number, (name, curve) in enumerate(group.items()):
        # Colours come round after 10 curves; the total loss stands out.
        style['linestyle'] = ('-', '--', ':')[number // 10 % 3]
        style['linewidth'] = 2.2 if name == 'loss' else 1.2
        axis.plot(*curve, label=name, **style)
    axis.set_xlim(left=0)
    axis.set_ylabel(label)
    axis.grid(alpha=0.3)
    if group:
        axis.legend(loc='center left', bbox_to_anchor=(1, 0.5), fontsize=8)


def main(argv: Sequence[str] | None = None) -> int:
    """Plot the work dir that the command line names.

    Args:
        argv (Sequence[str], optional): Arguments. Defaults to None: the
            process's own.

    Returns:
        int: Exit status: 0, or 1 where there is nothing to plot.
    """
    parser = argparse.ArgumentParser(
        description='Plot learning rate, losses and validation AP of a '
        'training run.'
    )
    parser.add_argument(
        'work_dir', type=Path, help='work dir of the training run'
    )
    parser.add_argument(
        '--out',
        type=Path,
        help='figure to write (default: WORK_DIR/log.png)',
    )
    args = parser.parse_args(argv)
    out = args.out or args.work_dir / 'log.png'
    try:
        curves = extract(load_work_dir(args.work_dir))
        figure = draw(curves, args.work_dir.resolve().name)
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=120)
        plt.close(figure)
    except (ValueError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    print(f'wrote {out}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
