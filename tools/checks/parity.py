# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""MegDetSyncBN on these ranks and devices against one float64 BatchNorm.

The bounds hold for any order of summation, so for any device. ``U`` is
float32's roundoff, n the most positions on a rank:

- sums over positions: n additions at the most, 4 roundings in each summand:
  ``SUM = (n + 4) U`` of the sum of absolute values;
- variance: as a sum, and ``8 * 2^-53 * mean^2`` that float64 leaves of
  ``E[x^2] - E[x]^2``; relative to ``var + eps`` that is ``r``;
- output: 6 roundings, and half of r in the scale;
- input gradient: 8 roundings, the two sums behind it, 1.5 r;
- gradients of weight and bias: sums, added up over the ranks in float32;
- half precision: the result is rounded once more.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mmdet_megdet.sync_bn import MegDetSyncBN, resolve_bn_groups

from .collectives import Group
from .meeting import Meeting
from .report import Finding, failure, passed

U = 2.0**-24
_CHANNELS, _SIDE = 16, 8
_MOST_IMAGES = 3
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_SUM = (_MOST_IMAGES * _SIDE**2 + 4) * U


def shares(kind: str, ranks: int) -> list[int]:
    """Images of each rank of a group."""
    if kind == 'even':
        return [2] * ranks
    if kind == 'uneven':
        return [1 + rank % _MOST_IMAGES for rank in range(ranks)]
    return [0 if rank % 2 else _MOST_IMAGES for rank in range(ranks)]


def check_parity(meeting: Meeting, group: Group) -> Iterator[Finding]:
    """Compare output, gradients and running statistics; a collective."""
    worst: dict[str, float] = {}
    for kind in ('even', 'uneven', 'empty ranks'):
        for dtype in _DTYPES:
            errors = _errors(meeting, group, kind, dtype)
            name = _name(dtype)
            for quantity, share in errors.items():
                worst[f'{quantity}, {name}, {kind}'] = share
    by_rank = meeting.gather(worst)
    faults = [
        f'{meeting.names[rank]}: {what} is off by {share:.3g} times the bound'
        for rank, found in enumerate(by_rank)
        for what, share in found.items()
        # A NaN is above any bound.
        if not share <= 1
    ]
    if faults:
        yield failure(
            'MegDetSyncBN',
            f'{group.name}: {len(faults)} quantities differ from float64 '
            f'BatchNorm, {faults[0]}',
            'Do not train on this. If all-reduce is right, run the tests of '
            'this package on such a device (python -m pytest tests/sync_bn).',
        )
        return
    # Half precision uses its bound up: the last rounding is most of it.
    largest = max(
        share
        for found in by_rank
        for what, share in found.items()
        if 'float32' in what
    )
    kinds = ', '.join(_name(d) for d in _DTYPES)
    yield passed(
        'MegDetSyncBN',
        f'{group.name}: equals float64 BatchNorm over the whole batch ({kinds}'
        '; even, uneven and empty ranks); the largest error in float32 is '
        f'{largest:.2g} of its bound',
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix('torch.')


def _errors(
    meeting: Meeting, group: Group, kind: str, dtype: torch.dtype
) -> dict[str, float]:
    """Errors on this rank, divided by what they may be."""
    generator = torch.Generator().manual_seed(0)
    number = shares(kind, len(group.ranks))
    shape = (sum(number), _CHANNELS, _SIDE, _SIDE)
    # Images differ in level, as real ones do, and are not about zero.
    x_all = torch.randn(shape, generator=generator) + 3
    x_all += torch.randn(shape[0], 1, 1, 1, generator=generator)
    dy_all = torch.randn(shape, generator=generator)
    x_all, dy_all = x_all.to(dtype), dy_all.to(dtype)

    place = group.ranks.index(meeting.rank)
    begin = sum(number[:place])
    own = slice(begin, begin + number[place])
    layer = _layer().to(meeting.device)
    resolve_bn_groups(layer, 1, bn_size=len(group.ranks))
    x = x_all[own].to(meeting.device).requires_grad_()
    y = layer(x)
    y.backward(dy_all[own].to(meeting.device))
    sums = torch.stack([layer.weight.grad, layer.bias.grad])
    dist.all_reduce(sums, group=group.process_group)

    plain = nn.BatchNorm2d(_CHANNELS).double()
    plain.load_state_dict(_layer().state_dict())
    x_all, dy_all = x_all.double().requires_grad_(), dy_all.double()
    y_all = plain(x_all)
    y_all.backward(dy_all)
    got = dict(
        output=y,
        dx=x.grad,
        dweight=sums[0],
        dbias=sums[1],
        running_mean=layer.running_mean,
        running_var=layer.running_var,
    )
    truth = dict(
        output=y_all[own],
        dx=x_all.grad[own],
        dweight=plain.weight.grad,
        dbias=plain.bias.grad,
        running_mean=plain.running_mean,
        running_var=plain.running_var,
    )
    bounds = _bounds(plain, x_all.detach(), dy_all, truth, dtype, len(number))
    return {
        name: _share(value.detach().cpu().double(), truth[name], bounds[name])
        for name, value in got.items()
        if value.numel()
    }


def _layer() -> MegDetSyncBN:
    generator = torch.Generator().manual_seed(1)
    layer = MegDetSyncBN(_CHANNELS)
    with torch.no_grad():
        layer.weight.uniform_(0.5, 2, generator=generator)
        layer.bias.uniform_(-1, 1, generator=generator)
    return layer


def _share(got: Tensor, true: Tensor, bound: Tensor) -> float:
    return ((got - true).abs() / bound).max().item()


def _bounds(
    plain: nn.BatchNorm2d,
    x: Tensor,
    dy: Tensor,
    truth: dict[str, Tensor],
    dtype: torch.dtype,
    ranks: int,
) -> dict[str, Tensor]:
    """What each error may be at the most."""
    dims, column = [0, 2, 3], (1, -1, 1, 1)
    mean, var = x.mean(dims), x.var(dims, unbiased=False)
    invstd = (var + plain.eps).rsqrt()
    left = 8 * 2.0**-53 * mean.square()
    r = (_SUM + left * invstd.square()).max()
    half = dtype != torch.float32
    last = torch.finfo(dtype).eps / 2 if half else 0.0
    x_hat = (x - mean.view(column)) * invstd.view(column)
    weight, bias = plain.weight.abs().max(), plain.bias.abs().max()
    largest = x_hat.abs().max() * weight + bias
    slope = dy.abs().max() * (1 + x_hat.abs().max() ** 2)
    slope = slope * (invstd * weight).max()
    stored = 2 * U
    true_mean, true_var = truth['running_mean'], truth['running_var']
    gradient = _SUM + ranks * U + r / 2
    return dict(
        output=(6 * U + r / 2) * largest + U + last * truth['output'].abs(),
        dx=(8 * U + 2 * _SUM + 1.5 * r) * slope + last * truth['dx'].abs(),
        dweight=gradient * (dy * x_hat).abs().sum(dims) + U,
        dbias=gradient * dy.abs().sum(dims) + U,
        running_mean=_SUM * var.sqrt()
        + stored * (true_mean.abs() + mean.abs())
        + U,
        running_var=(_SUM + stored) * (true_var + var)
        + 2 * left
        + U * plain.eps,
    )
