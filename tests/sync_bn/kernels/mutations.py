# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Kernels with one formula wrong, which the tests have to notice."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from mmdet_megdet.sync_bn.kernels import triton_kernels

# What is replaced by what; each old text stands in the source once.
MUTATIONS = {
    'origins do not move the second moment': (
        'second += s + (f + moved) * e',
        'second += s',
    ),
    'origins do not move the first moment': (
        'moved = f + n * e',
        'moved = f',
    ),
    'the last chunk counts as a whole one': (
        'n = tl.minimum(extent - p % chunks * span, span).to(tl.float64)',
        'n = (p * 0 + span).to(tl.float64)',
    ),
    "the chunks' spread about the mean is forgotten": (
        'tl.sum(second, 0) - moved * moved / n',
        'tl.sum(second, 0)',
    ),
    'values outside are centred too': (
        """        d = tl.where(inside, v - centre, 0.0)
        first += d""",
        """        d = v - centre
        first += d""",
    ),
    'a tile is left out': (
        'for step in range(1, tiles):',
        'for step in range(2, tiles):',
    ),
    'the square of the mean is not taken off': (
        'square - mean * mean',
        'square',
    ),
    'the rounding of the origin is forgotten': (
        'shift = -rest * scale',
        'shift = 0.0 * scale',
    ),
    'eps is added to the root': (
        'tl.sqrt(var + eps + eps_rest)',
        '(tl.sqrt(var) + eps)',
    ),
    'the running variance is biased': (
        'var * (n / tl.maximum(n - 1.0, 1.0))',
        'var',
    ),
    'the cumulative average counts one batch more': (
        '(seen + 1)',
        '(seen + 2)',
    ),
    'gradients are not centred': (
        'b = tl.sum(second, 0) - rest * a',
        'b = tl.sum(second, 0) + 1000.0 * rest * a',
    ),
    'the gradient of the weight has the variance in it': (
        'value = (b * invstd)',
        'value = (b * invstd * invstd)',
    ),
    'the slope lacks a factor': (
        'slope = invstd * invstd * (b * share)',
        'slope = invstd * (b * share)',
    ),
    'the mean gradient is not taken off': (
        'shift = a * share - rest * slope',
        'shift = -rest * slope',
    ),
    'the slope is not taken off': (
        '(g - d * slope - shift)',
        '(g - shift)',
    ),
    'weights do not scale the gradient': (
        'result = (g - d * slope - shift) * scale',
        'result = g - d * slope - shift',
    ),
    'images of a channel overwrite one another': (
        'return line // channels * chunks + chunk',
        'return chunk',
    ),
}


def mutated(name: str, folder: Path) -> ModuleType:
    """The kernels' module with one mutation in it."""
    old, new = MUTATIONS[name]
    source = Path(triton_kernels.__file__).read_text()
    assert source.count(old) == 1, name
    path = folder / 'mutated_kernels.py'
    path.write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location('mutated_kernels', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
