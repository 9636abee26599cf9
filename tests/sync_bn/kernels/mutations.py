# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Kernels with one formula wrong, which the tests have to notice."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from mmdet_megdet.sync_bn.kernels import triton_kernels

# What is replaced by what; each old text stands in the source once.
MUTATIONS = {
    'second moment not moved': (
        'second += s + (f + moved) * e',
        'second += s',
    ),
    'first moment not moved': ('moved = f + n * e', 'moved = f'),
    'last chunk counts as whole': (
        'n = tl.minimum(extent - p % chunks * span, span).to(tl.float64)',
        'n = (p * 0 + span).to(tl.float64)',
    ),
    "no spread of chunks' means": (
        'tl.sum(second, 0) - moved * moved / n',
        'tl.sum(second, 0)',
    ),
    'values outside are centred': (
        'd = tl.where(inside, v - centre, 0.0)\n        first += d',
        'd = v - centre\n        first += d',
    ),
    'a tile left out': ('step in range(1, tiles)', 'step in range(2, tiles)'),
    'no square of the mean': ('square - mean * mean', 'square'),
    'no rounding of the origin': ('-rest * scale', '0.0 * scale'),
    'eps added to the root': (
        'tl.sqrt(var + eps + eps_rest)',
        '(tl.sqrt(var) + eps)',
    ),
    'biased variance': ('var * (n / tl.maximum(n - 1.0, 1.0))', 'var'),
    'one batch more in the average': ('(seen + 1)', '(seen + 2)'),
    'gradients not centred': ('- rest * a', '+ 1000.0 * rest * a'),
    'variance in dweight': ('(b * invstd)', '(b * invstd * invstd)'),
    'slope lacks a factor': ('slope = invstd * invstd', 'slope = invstd'),
    'no mean gradient': ('a * share - rest * slope', '-rest * slope'),
    'no slope': ('(g - d * slope - shift)', '(g - shift)'),
    'no weights in dx': (
        '(g - d * slope - shift) * scale',
        '(g - d * slope - shift)',
    ),
    'images overwrite one another': (
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
