# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the tools that plot share: the command line, and saving a figure.

Importing it lets scripts import ``mmdet_megdet`` from a clone.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from matplotlib.figure import Figure

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def work_dir_parser(doc: str, out: str) -> argparse.ArgumentParser:
    """Return a parser that takes a work dir, and ``--out`` for its ``out``."""
    parser = argparse.ArgumentParser(description=doc.split('\n\n')[0])
    add = parser.add_argument
    add('work_dir', type=Path, help='work dir of the training run')
    add('--out', type=Path, help=f'where to write (default: WORK_DIR/{out})')
    return parser


def save(figure: Figure, path: Path) -> None:
    """Save a figure, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
