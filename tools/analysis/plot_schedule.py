# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Plot the learning rate of a whole training, without training.

The real schedulers of the config are built and stepped as the Runner does
it, for an optimizer without a model: the curve is that of the optimizer's
own learning rate, of which parameter groups may have multiples.

Example::

    python tools/analysis/plot_schedule.py configs/megdet/r50_fpn_256bs.py \
        --gpus 8 --images 117266
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import matplotlib

matplotlib.use('Agg')

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from mmengine.config import Config, DictAction
from rehearsal import Schedule, rehearse

from mmdet_megdet.arguments import positive


def write_csv(schedule: Schedule, path: Path) -> None:
    """Write all updates, floats in full.

    The columns: ``update``, counted from 0, which is the warm-up's ``t``;
    ``first_iteration`` and ``epoch``, those done before it; ``lr``.
    """
    with path.open('w', newline='') as file:
        writer = csv.writer(file, lineterminator='\n')
        writer.writerow(['update', 'first_iteration', 'epoch', 'lr'])
        for number, (iteration, lr) in enumerate(schedule.updates):
            epoch = iteration / schedule.epoch_length
            writer.writerow([number, iteration, repr(epoch), repr(lr)])


def draw(schedule: Schedule, title: str) -> Figure:
    """Draw the learning rate, linearly and logarithmically.

    Args:
        schedule (Schedule): What to draw.
        title (str): First line of the title.

    Returns:
        Figure: The figure.
    """
    per_epoch = schedule.updates_per_epoch
    figure, axes = plt.subplots(
        2, 1, sharex=True, figsize=(10, 7), layout='constrained'
    )
    figure.suptitle(
        f'{title}\n{schedule.batch}; {len(schedule.updates)} updates, '
        f'{per_epoch:g} an epoch ({schedule.epoch_length} iterations)',
        fontsize=10,
    )
    rates = [update.lr for update in schedule.updates]
    for axis, scale in zip(axes, ('linear', 'log'), strict=True):
        # Update k uses its value from k to k + 1.
        axis.stairs(rates, baseline=None, linewidth=1.5)
        axis.set_yscale(scale)
        axis.set_ylabel(f'learning rate ({scale})')
        axis.grid(alpha=0.3)
        axis.set_xlim(0, len(rates))
        for number, (label, update) in enumerate(schedule.marks):
            axis.axvline(
                update,
                color=f'C{number % 9 + 1}',
                linestyle='--',
                linewidth=1,
                label=f'{label}: update {update:g}, '
                f'epoch {update / per_epoch:.4g}',
            )
    if schedule.marks:
        handles = axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc='outside lower center', fontsize=9)
    axes[1].set_xlabel('optimizer update')
    epochs = axes[0].secondary_xaxis(
        'top', (lambda x: x / per_epoch, lambda x: x * per_epoch)
    )
    epochs.set_xlabel('epoch')
    return figure


def main(argv: Sequence[str] | None = None) -> int:
    """Plot the schedule of the config that the command line names.

    Args:
        argv (Sequence[str], optional): Arguments. Defaults to None: the
            process's own.

    Returns:
        int: Exit status: 0, or 1 where the schedule cannot be had.
    """
    parser = argparse.ArgumentParser(
        description='Plot the learning rate of a whole training, without '
        'training.'
    )
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--gpus', type=positive, default=1, help='number of GPUs (default: 1)'
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        '--images',
        type=positive,
        help="number of training images (default: the data set's)",
    )
    length.add_argument(
        '--epoch-length', type=positive, help='iterations of an epoch'
    )
    parser.add_argument(
        '--out',
        type=Path,
        help='figure to write (default: work_dirs/CONFIG/schedule.png)',
    )
    parser.add_argument(
        '--csv', type=Path, help='table of the exact values to write'
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        help='settings that override the config, as key=value',
    )
    args = parser.parse_args(argv)
    out = args.out or Path('work_dirs', Path(args.config).stem, 'schedule.png')
    try:
        cfg = Config.fromfile(args.config)
        if args.cfg_options is not None:
            cfg.merge_from_dict(args.cfg_options)
        schedule = rehearse(cfg, args.gpus, args.images, args.epoch_length)
        figure = draw(schedule, Path(args.config).name)
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=120)
        plt.close(figure)
        print(f'wrote {out}')
        if args.csv is not None:
            args.csv.parent.mkdir(parents=True, exist_ok=True)
            write_csv(schedule, args.csv)
            print(f'wrote {args.csv}')
    except (ValueError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
