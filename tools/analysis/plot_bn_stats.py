# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Show what BNStatsMonitorHook measured: three figures and a report.

Reads ``WORK_DIR/bn_stats.jsonl``, of a running job too.

Example::

    python tools/analysis/plot_bn_stats.py work_dirs/shapes_r18_fpn
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import sys
from collections.abc import Sequence
from pathlib import Path

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import matplotlib.pyplot as plt
from bn_monitor.figures import SECTIONS
from bn_monitor.page import render

from mmdet_megdet.monitor import read_records

REPORT = 'bn_report.html'


def main(argv: Sequence[str] | None = None) -> int:
    """Plot the work dir that the command line names.

    Args:
        argv (Sequence[str], optional): Arguments. Defaults to None: the
            process's own.

    Returns:
        int: Exit status: 0, or 1 where there is nothing to plot.
    """
    parser = argparse.ArgumentParser(
        description='Show what BNStatsMonitorHook measured: three figures '
        'and a report that holds them.'
    )
    parser.add_argument(
        'work_dir', type=Path, help='work dir of the training run'
    )
    parser.add_argument(
        '--out',
        type=Path,
        help='folder to write to (default: WORK_DIR/bn_stats)',
    )
    args = parser.parse_args(argv)
    out = args.out or args.work_dir / 'bn_stats'
    try:
        records = read_records(args.work_dir)
        out.mkdir(parents=True, exist_ok=True)
        figures = {}
        for name, section in SECTIONS.items():
            figure = section.draw(records)
            buffer = io.BytesIO()
            figure.savefig(buffer, format='png', dpi=150)
            plt.close(figure)
            figures[name] = buffer.getvalue()
            (out / f'{name}.png').write_bytes(figures[name])
        page = render(records, figures, args.work_dir.resolve().name)
        (out / REPORT).write_text(page, encoding='utf-8')
    except (ValueError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    print(f'wrote {out / REPORT} and its figures')
    return 0


if __name__ == '__main__':
    sys.exit(main())
