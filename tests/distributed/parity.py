# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""MegDetSyncBN on many ranks against one float64 BatchNorm, with bounds.

``sync_bn/kernels/check.py`` derives them. At most 24 float32 additions follow
one another on small inputs; on others those in a piece of a row, in 8 lanes,
and the lanes' sums. Each summand has up to 4 roundings (7 where the square of
a root is one). So sums are good to 28 U (143 U) of the sum of absolute values,
U being the roundoff. Triton's interpreter truncates to bfloat16 where a GPU
rounds: twice as much.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mmdet_megdet import sync_bn
from mmdet_megdet.sync_bn import MegDetSyncBN, kernels
from mmdet_megdet.sync_bn.kernels import blocks

U = 2.0**-24
STEPS = 2


def sum_bound(x: Tensor) -> float:
    """Of a sum over the positions of a channel, by that of absolute values."""
    small = x.shape[2:].numel() < blocks.SHORTEST_PIECE
    return (28 if small else blocks.LONGEST_PIECE // 8 + 15) * U


def channels_last(x: Tensor) -> Tensor:
    """A batch in that layout, if it is one of images."""
    if x.dim() != 4:
        return x
    return x.contiguous(memory_format=torch.channels_last)


@dataclass
class Case:
    """One layer, its arguments, and the images of all ranks.

    ``layout`` is applied to input and output gradient, which may have one of
    its own, or be ``expanded``: the same for all images and channels.
    ``constant`` gives channel 0 one value throughout.
    """

    shares: tuple[int, ...]
    spatial: tuple[int, ...] = (4, 5)
    mean: float = 0.0
    dtype: torch.dtype = torch.float32
    layer: dict = field(default_factory=dict)
    channels: int = 3
    layout: Callable[[Tensor], Tensor] = torch.clone
    gradient_layout: Callable[[Tensor], Tensor] | None = None
    expanded: bool = False
    constant: bool = False
    ranks_per_group: int | None = None

    def batch(self) -> tuple[Tensor, Tensor]:
        """The whole batch and its output gradient, on every rank alike."""
        generator = torch.Generator().manual_seed(0)
        shape = (sum(self.shares), self.channels, *self.spatial)
        x = torch.randn(shape, generator=generator)
        # Images differ in level, as real ones do: the variance between
        # ranks is a large part of the whole.
        x += torch.randn(len(x), *[1] * (x.dim() - 1), generator=generator)
        if self.constant:
            x[:, 0] = 0.1
        dy = torch.randn(shape, generator=generator).to(self.dtype)
        if self.expanded:
            dy = dy[:1, :1].expand_as(dy)
        return (x + self.mean).to(self.dtype), dy

    def new_layer(self) -> MegDetSyncBN:
        """The layer, with weights that every rank draws alike."""
        generator = torch.Generator().manual_seed(1)
        layer = MegDetSyncBN(self.channels, **self.layer)
        for parameter in layer.parameters():
            nn.init.uniform_(parameter, -2, 2, generator=generator)
        return layer


def parity(rank: int, world_size: int, case: Case) -> dict[str, float]:
    """The largest error of each quantity after ``STEPS``, by its bound."""
    layer, shares = case.new_layer(), case.shares
    ranks = case.ranks_per_group or world_size
    if case.ranks_per_group:
        sync_bn.resolve_bn_groups(layer, 1, bn_size=ranks)
    first = rank // ranks * ranks
    own = slice(sum(shares[first:rank]), sum(shares[first : rank + 1]))
    of_group = slice(sum(shares[:first]), sum(shares[: first + ranks]))
    x_all, dy_all = (v[of_group] for v in case.batch())
    x, dy = case.layout(x_all[own]).requires_grad_(), dy_all[own]
    if not case.expanded:
        dy = (case.gradient_layout or case.layout)(dy)
    x_all, dy_all = x_all.double().requires_grad_(), dy_all.double()

    # PyTorch's own, in float64, with the same state.
    dims = max(1, len(case.spatial))
    plain = sync_bn.revert_to_batch_norm(copy.deepcopy(layer), dims).double()
    positions = x_all.numel() // case.channels
    autocast = case.dtype == torch.bfloat16
    seen: list[sync_bn.Observation] = []
    for step in range(STEPS):
        # From the second on the layer is observed.
        layer.observer = seen.append if step else None
        for leaf in (x, x_all, *layer.parameters(), *plain.parameters()):
            leaf.grad = None
        with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
            y = layer(x)
        y.backward(dy)
        if positions > 1:
            y_all = plain(x_all)
            y_all.backward(dy_all)
    for result in y, x.grad:
        assert (result.dtype, result.shape) == (case.dtype, x.shape)
        if case.layout is channels_last:
            assert channels_last(result) is result
    (call,) = seen
    assert call.count == x.numel() // case.channels
    assert call.group_count == positions
    assert len(call.collectives) == 2  # forward's and backward's
    assert all(timer.seconds() > 0 for timer in call.collectives)
    if positions <= 1:
        return {}
    return {
        name: ((got.double() - true).abs() / bound).max().item()
        for name, got, true, bound in _compared(
            layer, plain, x, y, x_all, y_all, dy_all, own, ranks
        )
        if got.numel()
    }


def _compared(layer, plain, x, y, x_all, y_all, dy_all, own, ranks):
    """Name, value, true value and bound of each quantity."""
    x_grad, x_all, sums = x_all.grad, x_all.detach(), sum_bound(x_all)
    dims = [0, *range(2, x_all.dim())]
    column = (1, -1) + (1,) * (x_all.dim() - 2)
    mean, var = x_all.mean(dims), x_all.var(dims, unbiased=False)
    invstd = (var + layer.eps).rsqrt()
    left = 8 * 2.0**-53 * mean.square()
    r = (sums + left * invstd.square()).max()
    # What a half-precision output is rounded to last.
    half = x.dtype in (torch.float16, torch.bfloat16)
    last = torch.finfo(x.dtype).eps / 2 if half else 0.0
    if x.dtype == torch.bfloat16 and kernels.interpreted():
        last *= 2

    x_hat = (x_all - mean.view(column)) * invstd.view(column)
    weight = 1.0 if plain.weight is None else plain.weight.abs().max()
    bias = 0.0 if plain.bias is None else plain.bias.abs().max()
    largest = x_hat.abs().max() * weight + bias
    bound = (6 * U + r / 2) * largest + last * y_all[own].abs()
    yield 'y', y, y_all[own], bound + U

    largest = dy_all.abs().max() * (1 + x_hat.abs().max() ** 2)
    largest = largest * (invstd * weight).max()
    bound = (8 * U + 2 * sums + 1.5 * r) * largest + last * x_grad[own].abs()
    yield 'dx', x.grad, x_grad[own], bound

    if layer.affine:
        for name, summand in (('weight', dy_all * x_hat), ('bias', dy_all)):
            grad = getattr(layer, name).grad.clone()
            group = sync_bn.bn_group(layer.ranks_per_group, x.device)
            if group is not None:
                dist.all_reduce(grad, group=group)
            # Each rank rounds its share to float32; the scale carries r / 2.
            bound = sums + ranks * U + r / 2
            bound = bound * summand.abs().sum(dims) + U
            yield f'd{name}', grad, getattr(plain, name).grad, bound
    if layer.track_running_stats:
        # Stored in float32, STEPS times.
        stored = 2 * STEPS * U
        true = plain.running_mean
        bound = sums * var.sqrt() + stored * (true.abs() + mean.abs()) + U
        yield 'running_mean', layer.running_mean, true, bound
        true = plain.running_var
        bound = (sums + stored) * (true + var) + 2 * left + U * layer.eps
        yield 'running_var', layer.running_var, true, bound
        assert layer.num_batches_tracked.item() == STEPS


def parity_of_cases(
    rank: int, world_size: int, cases: list[Case]
) -> list[dict[str, float]]:
    """:func:`parity` of several cases."""
    return [parity(rank, world_size, case) for case in cases]
