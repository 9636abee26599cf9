# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The passes as plain operations of PyTorch, for any device.

They go block by block, which suits a CPU's caches. ``origin`` is what a block
is centred by: numbers of the dtype for computing (see
:func:`~..moments.split_mean`), ``(C, )`` or a row for each part (see
:class:`~.blocks.Blocks`).

Where the result is in the dtype for computing, its memory first holds
``x - origin``, which is there before the group's sums are. Half precision
would round it: there each block is centred when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..moments import (
    Running,
    compute_dtype,
    pack,
    split_mean,
    unpack,
    update_running,
)
from .blocks import Blocks
from .layout import dense, laid_out_as

Work = tuple[Tensor, Tensor | None]
Saved = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def prepare(x: Tensor, model: Tensor | None = None) -> Tensor:
    """Return ``x`` in a layout that the passes take: the model's, if any."""
    return dense(x) if model is None else laid_out_as(x, model)


def local_sums(x: Tensor) -> tuple[Tensor, Work]:
    """Return this rank's sums, and the output's memory with its origins."""
    y = torch.empty_like(x)
    if not x.numel():
        return x.new_zeros(2 * x.shape[1] + 1, dtype=torch.float64), (y, None)
    out = y if holds_centred(y) else None
    origins, count, mean, second = centre_parts(x, out)
    return pack(count, mean, second), (y, origins)


def normalise(
    x: Tensor,
    work: Work,
    sums: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None,
) -> tuple[Tensor, Saved]:
    """Return the output and vectors for backward; update ``running``."""
    y, origins = work
    mean, var, count = unpack(sums)
    invstd = (var + eps).rsqrt()
    scale = invstd if weight is None else invstd * weight
    if origins is not None:
        shift = (origins - mean).mul_(scale)
        if bias is not None:
            shift += bias
        scale_blocks(x, y, origins, scale, shift)
    origin, rest = split_mean(mean, x.dtype)
    if running is not None:
        update_running(running, mean, var, count)
    return y, (origin, rest, scale, invstd, count)


def gradient_sums(
    x: Tensor,
    dy: Tensor,
    saved: Saved,
    weight_dtype: torch.dtype | None,
    bias_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return this rank's sums, and the gradients of weight and bias.

    In float64: autograd casts them.
    """
    origin, rest, _, invstd, _ = saved
    if x.numel():
        sum_dy, sum_dy_d = centred_gradient_sums(x, dy, origin)
        sum_dy_d.addcmul_(rest, sum_dy, value=-1)
    else:
        sum_dy, sum_dy_d = rest.new_zeros(2, len(rest))
    dweight = None if weight_dtype is None else sum_dy_d * invstd
    dbias = None if bias_dtype is None else sum_dy
    return torch.cat([sum_dy, sum_dy_d]), dweight, dbias


def begin_input_gradient(x: Tensor, saved: Saved) -> Tensor:
    """Return the input gradient's memory, with the centred input in it.

    If it can hold that: it is done while the other ranks send their sums.
    """
    dx = torch.empty_like(x)
    if x.numel():
        centre(x, dx, saved[0])
    return dx


def finish_input_gradient(
    x: Tensor, dy: Tensor, dx: Tensor, saved: Saved, sums: Tensor
) -> None:
    """Write the input gradient by the group's sums."""
    if not x.numel():
        return
    origin, rest, scale, invstd, count = saved
    mean_dy, mean_dy_d = (sums / count.clamp(min=1)).chunk(2)
    slope = invstd.square().mul_(mean_dy_d)
    shift = torch.addcmul(mean_dy, slope, rest, value=-1)
    input_gradient(x, dy, dx, origin, slope, shift, scale)


def holds_centred(out: Tensor) -> bool:
    """Return whether ``x - origin`` can be kept where the result will be."""
    return out.dtype == compute_dtype(out.dtype)


def local_moments(x: Tensor) -> tuple[int, Tensor, Tensor]:
    """Return count, mean and centred second moment of one rank's batch.

    ``x`` is ``(N, C, *)`` of any floating dtype. The vectors are float64
    ``(C, )``, zero where there is no position.
    """
    if x.numel() == 0:
        zero = x.new_zeros(x.shape[1], dtype=torch.float64)
        return 0, zero, zero.clone()
    _, count, mean, second = centre_parts(dense(x), None)
    return count, mean, second


def centre_parts(
    x: Tensor, out: Tensor | None
) -> tuple[Tensor, int, Tensor, Tensor]:
    """Return ``origins`` and :func:`local_moments`; leave the centred input.

    Origins, float64 ``(parts, C)``, are the rounded means of the parts (see
    :class:`~.blocks.Blocks`). ``x`` is dense and not empty; ``x - origins``
    is left in ``out``, if any, which is in the dtype for computing.
    """
    blocks = Blocks(x)
    dim, pieces = blocks.dim, blocks.pieces
    parts = blocks.split(x)
    if out is None or not pieces:
        work = torch.empty_like(parts[0], dtype=blocks.dtype)
        works = [work[: len(part)] for part in parts]
    outs = works if out is None else blocks.split(out)
    origins, firsts, seconds = [], [], []
    # The corrected two-pass algorithm within a block: the first moment about
    # the rounded mean takes back what the rounding did to the second.
    for number, (block, centred) in enumerate(zip(parts, outs, strict=True)):
        origin = block.sum(dim, keepdim=True, dtype=blocks.dtype)
        origin /= block.shape[dim]
        torch.sub(block, origin, out=centred)
        origins.append(origin.flatten())
        firsts.append(centred.sum(dim))
        if pieces:
            rows = centred.view(-1, blocks.width // pieces)
            norms = torch.linalg.vector_norm(rows, dim=-1)
            second = norms.square_().view(-1, pieces).sum(-1)
        else:
            squares = torch.mul(centred, centred, out=works[number])
            second = squares.sum(dim)
        seconds.append(second)

    origin, first, second = blocks.per_channel(origins, firsts, seconds)
    counts = blocks.part_counts(x.device)
    shift = first / counts
    means = origin + shift
    mean = (means * (counts / blocks.count)).sum(0)
    second.addcmul_(first, shift, value=-1)
    deviation = means.sub_(mean)
    second.addcmul_(deviation, deviation * counts)
    return origin, blocks.count, mean, second.sum(0).clamp_(min=0)


def scale_blocks(
    x: Tensor, y: Tensor, origin: Tensor, scale: Tensor, shift: Tensor
) -> None:
    """Write ``(x - origin) * scale + shift`` into ``y``.

    Which holds the centred input already, if it can. The vectors are
    ``(C, )``, or have a row for each part.
    """
    blocks = Blocks(x)
    for centred, y_block, (scale_block, shift_block) in zip(
        _centred(blocks, x, y, origin),
        blocks.split(y),
        blocks.split_vectors(scale, shift),
        strict=True,
    ):
        _deliver(centred.mul_(scale_block).add_(shift_block), y_block)


def centred_gradient_sums(
    x: Tensor, dy: Tensor, origin: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``sum(dy)`` and ``sum(dy * (x - origin))``, float64 ``(C, )``."""
    blocks = Blocks(x)
    if blocks.pieces and x.dtype == blocks.dtype:
        return _gradient_sums_of_rows(x, dy, origin, blocks.pieces)
    sums, products = [], []
    for x_block, dy_block, (origin_block,) in zip(
        *map(blocks.split, (x, dy)), blocks.split_vectors(origin), strict=True
    ):
        sums.append(dy_block.sum(blocks.dim, dtype=blocks.dtype))
        product = (x_block - origin_block).mul_(dy_block)
        products.append(product.sum(blocks.dim))
    return tuple(blocks.per_channel(sums, products).sum(1))


def _gradient_sums_of_rows(
    x: Tensor, dy: Tensor, origin: Tensor, pieces: int
) -> tuple[Tensor, Tensor]:
    """Do so in one call of PyTorch's fused CPU kernel.

    BatchNorm's backward takes these two sums for what it thinks is a
    channel; here that is a row, a piece of one channel of one image, so that
    the kernel's float32 sums stay short.
    """
    images, channels = x.shape[:2]
    rows = (1, images * channels * pieces, -1)
    origins = origin[:, None].expand(images, -1, pieces).flatten()
    _, products, sums = torch.ops.aten.native_batch_norm_backward(
        dy.reshape(rows),
        x.view(rows),
        None,
        None,
        None,
        origins,
        torch.ones_like(origins),
        True,
        0.0,
        [False, True, True],
    )
    both = torch.stack([sums, products]).double()
    return tuple(both.view(2, images, channels, pieces).sum((1, 3)))


def centre(x: Tensor, dx: Tensor, origin: Tensor) -> None:
    """Write ``x - origin`` into ``dx``, if its dtype can hold that."""
    if not holds_centred(dx):
        return
    blocks = Blocks(x)
    for x_block, dx_block, (origin_block,) in zip(
        *map(blocks.split, (x, dx)), blocks.split_vectors(origin), strict=True
    ):
        torch.sub(x_block, origin_block, out=dx_block)


def input_gradient(
    x: Tensor,
    dy: Tensor,
    dx: Tensor,
    origin: Tensor,
    slope: Tensor,
    shift: Tensor,
    scale: Tensor,
) -> None:
    """Write ``(dy - shift - (x - origin) * slope) * scale`` into ``dx``.

    Which holds the centred input already, if it can.
    """
    blocks = Blocks(x)
    for centred, dy_block, dx_block, constants in zip(
        _centred(blocks, x, dx, origin),
        *map(blocks.split, (dy, dx)),
        blocks.split_vectors(slope, shift, scale),
        strict=True,
    ):
        slope_block, shift_block, scale_block = constants
        torch.addcmul(dy_block, centred, slope_block, value=-1, out=centred)
        _deliver(centred.sub_(shift_block).mul_(scale_block), dx_block)


def _centred(
    blocks: Blocks, x: Tensor, out: Tensor, origin: Tensor
) -> Iterable[Tensor]:
    """The blocks of ``x - origin``, one at a time."""
    if holds_centred(out):
        return blocks.split(out)
    pairs = zip(blocks.split(x), blocks.split_vectors(origin), strict=True)
    return (x_block - origin_block for x_block, (origin_block,) in pairs)


def _deliver(result: Tensor, out: Tensor) -> None:
    if not holds_centred(out):
        out.copy_(result)
