# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The passes that normalisation makes over every element.

``x`` is dense and not empty. ``origin`` is what it is centred by: numbers of
the dtype for computing (see :func:`~.moments.split_mean`), ``(C, )`` or a row
for each part (see :class:`~.blocks.Blocks`).

Where the result is in the dtype for computing, its memory first holds
``x - origin``, which is there before the group's sums are. Half precision
would round it: there each block is centred when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .blocks import Blocks, compute_dtype


def holds_centred(out: Tensor) -> bool:
    """Whether ``x - origin`` can be kept where the result will be."""
    return out.dtype == compute_dtype(out.dtype)


def normalise(
    x: Tensor, y: Tensor, origin: Tensor, scale: Tensor, shift: Tensor
) -> None:
    """Write ``(x - origin) * scale + shift`` into ``y``.

    Args:
        x (Tensor): The input.
        y (Tensor): If it :func:`holds_centred`, it does so already.
        origin (Tensor): What ``x`` is centred by.
        scale (Tensor): ``(C, )``, or a row for each part.
        shift (Tensor): ``(C, )``, or a row for each part.
    """
    blocks = Blocks(x)
    for centred, y_block, (scale_block, shift_block) in zip(
        _centred(blocks, x, y, origin),
        blocks.split(y),
        blocks.split_vectors(scale, shift),
        strict=True,
    ):
        _deliver(centred.mul_(scale_block).add_(shift_block), y_block)


def gradient_sums(
    x: Tensor, dy: Tensor, origin: Tensor
) -> tuple[Tensor, Tensor]:
    """``sum(dy)`` and ``sum(dy * (x - origin))`` per channel, float64."""
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
    """:func:`gradient_sums` in one call of PyTorch's fused CPU kernel.

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
    """Write ``x - origin`` into ``dx`` if it can hold it."""
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
    """Write ``(dy - shift - (x - origin) * slope) * scale`` into ``dx``,
    which holds the centred input already if it can."""
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
