# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Types of command-line options."""

from __future__ import annotations

import argparse

# Beside this folder; it needs the standard library alone.
from plan import bn_size, positive

__all__ = ['bn_size', 'positive', 'seconds']


def seconds(text: str) -> float:
    """Reads a positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float('inf'):
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a positive number of seconds'
        )
    return value
