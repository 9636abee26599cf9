# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Types of command-line arguments. Needs the standard library alone."""

from __future__ import annotations

import argparse
import math


def positive(text: str) -> int:
    """Read a positive whole number."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a positive whole number'
        )
    return int(text)


def positive_number(text: str) -> float:
    """Read a positive, finite number."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f'{text!r} is not a positive number')
    return value


def bn_size(text: str) -> int | None:
    """Read ``--bn-size``: a number of images, or ``none`` for all ranks'."""
    if text.lower() == 'none':
        return None
    try:
        return positive(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error} or 'none'") from None
