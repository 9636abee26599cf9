# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""MegDetSyncBN on these ranks and devices against one float64 BatchNorm."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

from mmdet_megdet.sync_bn import MegDetSyncBN, resolve_bn_groups

from .collectives import Group
from .ranks import Meeting
from .report import Finding, failure, passed

_CHANNELS, _SIDE = 16, 8
_MOST_IMAGES = 3
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Of the largest value of its kind; a float32 sum of a rank's 192 positions is
# good to 192 * 2^-24 = 1.2e-5 at worst. Half precision rounds the result.
_TOLERANCE = 5e-5


def shares(kind: str, ranks: int) -> list[int]:
    """Return the images of each rank of a group."""
    if kind == 'even':
        return [2] * ranks
    if kind == 'uneven':
        return [1 + rank % _MOST_IMAGES for rank in range(ranks)]
    return [0 if rank % 2 else _MOST_IMAGES for rank in range(ranks)]


def check_parity(meeting: Meeting, group: Group) -> Iterator[Finding]:
    """Compare output, gradients and running statistics; a collective."""
    own = {
        f'{quantity}, {_name(dtype)}, {kind}': errors
        for kind in ('even', 'uneven', 'empty ranks')
        for dtype in _DTYPES
        for quantity, errors in _errors(meeting, group, kind, dtype).items()
    }
    found = [
        (rank, what, *errors)
        for rank, of_rank in enumerate(meeting.gather(own))
        for what, errors in of_rank.items()
    ]
    # A NaN is above any bound.
    faults = [
        f'rank {rank}: {what} is off by {error:.3g} of the largest value'
        for rank, what, error, bound in found
        if not error <= bound
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
    largest = max(error for _, what, error, _ in found if 'float32' in what)
    yield passed(
        'MegDetSyncBN',
        f'{group.name}: equals float64 BatchNorm over the whole batch '
        f'({", ".join(map(_name, _DTYPES))}; even, uneven and empty ranks); '
        f'the largest error in float32 is {largest:.2g} of the largest value',
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix('torch.')


def _errors(
    meeting: Meeting, group: Group, kind: str, dtype: torch.dtype
) -> dict[str, tuple[float, float]]:
    """Return this rank's relative errors, and what they may be."""
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
    x_all = x_all.double().requires_grad_()
    y_all = plain(x_all)
    y_all.backward(dy_all.double())
    pairs = dict(
        output=(y, y_all[own]),
        dx=(x.grad, x_all.grad[own]),
        dweight=(sums[0], plain.weight.grad),
        dbias=(sums[1], plain.bias.grad),
        running_mean=(layer.running_mean, plain.running_mean),
        running_var=(layer.running_var, plain.running_var),
    )
    errors = {}
    for name, (got, true) in pairs.items():
        if got.numel():
            difference = (got.detach().cpu().double() - true).abs().max()
            bound = max(_TOLERANCE, torch.finfo(got.dtype).eps)
            errors[name] = (difference / true.abs().max()).item(), bound
    return errors


def _layer() -> MegDetSyncBN:
    generator = torch.Generator().manual_seed(1)
    layer = MegDetSyncBN(_CHANNELS)
    with torch.no_grad():
        layer.weight.uniform_(0.5, 2, generator=generator)
        layer.bias.uniform_(-1, 1, generator=generator)
    return layer
