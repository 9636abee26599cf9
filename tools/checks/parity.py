# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""MegDetSyncBN on these ranks and devices against one float64 BatchNorm."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

from mmdet_megdet.sync_bn import MegDetSyncBN, resolve_bn_groups

from .collectives import Group, told
from .ranks import Meeting
from .report import Finding

_CHANNELS, _SIDE = 16, 8
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Of the largest value of its kind; a float32 sum of a rank's 128 positions is
# good to 128 * 2^-24 = 8e-6 at worst. Half precision rounds the result.
_TOLERANCE = 5e-5


def check_parity(meeting: Meeting, group: Group) -> Iterator[Finding]:
    """Compare output, gradients and running statistics; a collective.

    Ranks have two images, one and none in turn.
    """
    # A NaN is above any bound.
    faults = [
        f'{quantity} in {dtype} is off by {error:.3g} of the largest value'
        for dtype in _DTYPES
        for quantity, (error, bound) in _errors(meeting, group, dtype).items()
        if not error <= bound
    ]
    yield told(
        meeting,
        group,
        'MegDetSyncBN',
        faults,
        'If all-reduce is right, run the tests of this package on such a '
        'device (python -m pytest tests/sync_bn).',
    )


def _errors(
    meeting: Meeting, group: Group, dtype: torch.dtype
) -> dict[str, tuple[float, float]]:
    """Return this rank's relative errors, and what they may be."""
    generator = torch.Generator().manual_seed(0)
    number = [2 - rank % 3 for rank in range(len(group.ranks))]
    shape = (sum(number), _CHANNELS, _SIDE, _SIDE)
    # Images differ in level, as real ones do, and are not about zero.
    x_all = torch.randn(shape, generator=generator) + 3
    x_all += torch.randn(shape[0], 1, 1, 1, generator=generator)
    dy_all = torch.randn(shape, generator=generator)
    x_all, dy_all = x_all.to(dtype), dy_all.to(dtype)

    place = group.ranks.index(meeting.rank)
    begin = sum(number[:place])
    own = slice(begin, begin + number[place])
    layer = MegDetSyncBN(_CHANNELS)
    nn.init.uniform_(layer.weight, 0.5, 2, generator)
    nn.init.uniform_(layer.bias, -1, 1, generator)
    plain = nn.BatchNorm2d(_CHANNELS).double()
    plain.load_state_dict(layer.state_dict())
    layer.to(meeting.device)
    resolve_bn_groups(layer, 1, bn_size=len(group.ranks))
    x = x_all[own].to(meeting.device).requires_grad_()
    y = layer(x)
    y.backward(dy_all[own].to(meeting.device))
    sums = torch.stack([layer.weight.grad, layer.bias.grad])
    dist.all_reduce(sums, group=group.process_group)

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
