# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The Triton kernels against the plain operations, before they are trusted.

The plain operations compute in float64 what is held against the kernels'
numbers. The bounds are in units of the roundoff ``U`` of the dtype for
computing (those of ``tests/distributed/parity.py``, on smaller inputs, too):

- sums: 16 tiles, 32 additions within one and 4 roundings in each summand,
  ``SUM = 52 U`` of the sum of absolute values;
- variance: as a sum, and ``8 * 2^-53 * mean^2`` that float64 leaves of
  ``E[x^2] - E[x]^2``; relative to ``var + eps`` that is ``r``;
- output: 6 roundings, and half of r in the scale;
- input gradient: 8 roundings, the two sums behind it, 1.5 r;
- running statistics: stored once;
- half precision: results are rounded once more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..moments import Running, compute_dtype, unpack
from . import plain

_EPS = 1e-3
# So few that small inputs have chunks of several tiles, and several chunks.
_PROGRAMS = 12
_SMALL = ((2, 3, 9104), (2, 3, 9101), (2, 80, 7, 11), (2, 67, 7, 11))


class Case(NamedTuple):
    """An input, channels last if it has four dimensions, and settings.

    ``few_programs`` cuts it up as if it were large.
    """

    shape: tuple[int, ...]
    affine: bool = True
    running: bool = True
    momentum: float | None = 0.1
    few_programs: bool = True


class _Inputs(NamedTuple):
    x: Tensor
    dy: Tensor
    weight: Tensor | None
    bias: Tensor | None

    def double(self) -> _Inputs:
        parameters = (p if p is None else p.double() for p in self[2:])
        return _Inputs(self.x.double(), self.dy.double(), *parameters)


# Every kernel in every kind in which it may be compiled: both layouts with
# and without vector loads, all settings of a layer.
CASES = [
    *(Case(shape) for shape in _SMALL),
    Case(_SMALL[0], momentum=None),
    Case(_SMALL[0], running=False),
    Case(_SMALL[2], affine=False),
    Case(_SMALL[2], affine=False, momentum=None),
    Case(_SMALL[2], affine=False, running=False),
]

# What a ResNet-50 gives to its layers for two images of 800x1216.
_REAL = ((64, 200, 304), (256, 100, 152), (1024, 25, 38), (2048, 13, 19))


def find_fault_at_real_sizes(device: torch.device) -> str | None:
    """Do as :func:`find_fault`, with a ResNet-50's inputs of all dtypes."""
    cases = [
        Case(shape, few_programs=False)
        for c, height, width in _REAL
        for shape in ((2, c, height * width), (2, c, height, width))
    ]
    dtypes = torch.float32, torch.float16, torch.bfloat16
    faults = (find_fault(device, d, torch.float32, cases) for d in dtypes)
    return next((fault for fault in faults if fault is not None), None)


def find_fault(
    device: torch.device,
    dtype: torch.dtype,
    parameter_dtype: torch.dtype,
    cases: list[Case] = CASES,
) -> str | None:
    """Return why the kernels cannot be trusted; None if they can.

    Every kernel is run on the cases' inputs of ``dtype``, with weight, bias
    and running statistics of ``parameter_dtype``.
    """
    try:
        from . import fused
    except ImportError as error:
        return f'triton cannot be imported ({error})'
    for case in cases:
        name = f'{str(dtype).removeprefix("torch.")}, {case.shape}'
        try:
            shares = errors(fused, device, dtype, parameter_dtype, case)
        except Exception as error:
            text = ' '.join(str(error).split())[:300]
            return f'{type(error).__name__} with {name}: {text}'
        for quantity, share in shares.items():
            # A NaN is above any bound.
            if not share <= 1:
                return (
                    f'{quantity} is off by {share:.3g} times its bound with '
                    f'{name}'
                )
    return None


def errors(
    passes: Any,
    device: torch.device,
    dtype: torch.dtype,
    parameter_dtype: torch.dtype,
    case: Case,
) -> dict[str, float]:
    """Return each quantity's largest error, as a multiple of its bound."""
    inputs = _inputs(device, dtype, parameter_dtype, case)
    programs = passes.PROGRAMS
    if case.few_programs:
        passes.PROGRAMS = _PROGRAMS
    try:
        got = _step(passes, inputs, parameter_dtype, case)
    finally:
        passes.PROGRAMS = programs
    inputs = inputs.double()
    true = _step(plain, inputs, torch.float64, case)
    bounds = _bounds(inputs, true, dtype, parameter_dtype)
    found = {}
    for name, bound in bounds.items():
        error = (got[name].double() - true[name]).abs()
        found[name] = (error / bound).max().item()
    if case.running and not torch.equal(got['batches'], true['batches']):
        found['num_batches_tracked'] = float('inf')
    return found


def _inputs(
    device: torch.device,
    dtype: torch.dtype,
    parameter_dtype: torch.dtype,
    case: Case,
) -> _Inputs:
    generator = torch.Generator().manual_seed(0)
    # Far from zero, as far as the format has digits for it.
    mean = 20.0 if torch.finfo(dtype).eps > 1e-4 else 1000.0
    x, dy = torch.randn(2, *case.shape, generator=generator)
    x, dy = (x + mean).to(device, dtype), (dy + 0.5).to(device, dtype)
    if len(case.shape) == 4:
        x, dy = (
            v.contiguous(memory_format=torch.channels_last) for v in (x, dy)
        )
    if not case.affine:
        return _Inputs(x, dy, None, None)
    vectors = torch.rand(2, case.shape[1], generator=generator) + 0.5
    return _Inputs(x, dy, *vectors.to(device, parameter_dtype))


def _step(
    passes: Any, inputs: _Inputs, kept: torch.dtype, case: Case
) -> dict[str, Tensor]:
    """Run a forward and backward of a layer in a group of one rank."""
    x, dy, weight, bias = inputs
    running = None
    if case.running:
        mean, var = x.new_full((2, x.shape[1]), 2.0, dtype=kept)
        batches = torch.full((), 3, device=x.device)
        running = Running(mean, var, batches, case.momentum)
    x = passes.prepare(x)
    dy = passes.prepare(dy, x)
    sums, work = passes.local_sums(x)
    y, saved = passes.normalise(x, work, sums, weight, bias, _EPS, running)
    dtypes = [p if p is None else p.dtype for p in (weight, bias)]
    gradients, dweight, dbias = passes.gradient_sums(x, dy, saved, *dtypes)
    dx = passes.begin_input_gradient(x, saved)
    passes.finish_input_gradient(x, dy, dx, saved, gradients)
    mean, var, count = unpack(sums)
    found = dict(mean=mean, var=var, count=count, y=y, dx=dx)
    if case.affine:
        found |= dict(dweight=dweight, dbias=dbias)
    if running is not None:
        found |= dict(
            running_mean=running.mean,
            running_var=running.var,
            batches=running.batches,
        )
    return found


def _bounds(
    inputs: _Inputs,
    true: dict[str, Tensor],
    dtype: torch.dtype,
    parameter_dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Return what each error may be at the most."""
    x, dy, weight, _ = inputs
    dims, column = [0, *range(2, x.dim())], (1, -1, *[1] * (x.dim() - 2))
    u = torch.finfo(compute_dtype(dtype)).eps / 2
    last = torch.finfo(dtype).eps / 2
    if dtype == torch.bfloat16 and x.device.type == 'cpu':
        last *= 2  # Triton's interpreter truncates where a GPU rounds
    stored = torch.finfo(parameter_dtype).eps
    sums = 52 * u
    mean, var = true['mean'], true['var']
    invstd = (var + _EPS).rsqrt()
    left = 8 * 2.0**-53 * mean.square()
    r = (sums + left * invstd.square()).max()
    x_hat = (x - mean.view(column)) * invstd.view(column)
    w = 1.0 if weight is None else weight.abs().max()
    largest = x_hat.abs().max() * w + 1.5
    steepest = dy.abs().max() * (1 + x_hat.abs().max() ** 2)
    steepest = steepest * (invstd * w).max()
    bounds = dict(
        mean=sums * var.sqrt() + 8 * 2.0**-53 * mean.abs(),
        var=sums * var + left,
        count=torch.full_like(true['count'], 2.0**-60),
        y=(6 * u + r / 2) * largest + last * true['y'].abs(),
        dx=(8 * u + 2 * sums + 1.5 * r) * steepest + last * true['dx'].abs(),
    )
    if 'dweight' in true:
        for name, summand in (('dweight', dy * x_hat), ('dbias', dy)):
            bounds[name] = (sums + r / 2) * summand.abs().sum(dims)
            bounds[name] += stored * true[name].abs()
    if 'running_mean' in true:
        bounds['running_mean'] = bounds['mean'] + stored * (mean.abs() + 2)
        bounds['running_var'] = 2 * bounds['var'] + stored * (var + 2)
    return bounds
