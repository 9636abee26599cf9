# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Types of command-line options."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """Reads a positive whole number."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a positive whole number'
        )
    return int(text)


def bn_size(text: str) -> int | None:
    """Reads the value of ``--bn-size``."""
    return None if text.lower() == 'none' else positive(text)


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
