# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The passes that normalisation makes over every element.

``x`` is dense and not empty; ``origin`` is what it is centred by, ``(C, )``
in the dtype for computing (see :func:`~.moments.split_mean`).
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from .blocks import Blocks

# So many float32 additions may follow one another: PyTorch's kernel adds up
# a row in one go, in vector lanes of 8 or more.
LONGEST_ROW = 1024
# Rows shorter than this cost more in overhead than in arithmetic.
SHORTEST_ROW = 32


def normalise(
    x: Tensor, y: Tensor, origin: Tensor, scale: Tensor, shift: Tensor
) -> None:
    """Write ``(x - origin) * scale + shift`` into ``y``."""
    blocks = Blocks(x)
    for x_block, y_block, origin_block, scale_block, shift_block in zip(
        blocks.split(x),
        blocks.split(y),
        *map(blocks.split_vector, (origin, scale, shift)),
        strict=True,
    ):
        result = _result(y_block, blocks.dtype)
        torch.sub(x_block, origin_block, out=result)
        result.mul_(scale_block).add_(shift_block)
        _deliver(result, y_block)


def gradient_sums(
    x: Tensor, dy: Tensor, origin: Tensor
) -> tuple[Tensor, Tensor]:
    """``sum(dy)`` and ``sum(dy * (x - origin))`` per channel, float64."""
    pieces = _pieces(x)
    if pieces:
        return _gradient_sums_of_rows(x, dy, origin, pieces)
    blocks = Blocks(x)
    work, dim = blocks.work(x), blocks.dim
    sums, products = [], []
    for x_block, dy_block, origin_block in zip(
        blocks.split(x),
        blocks.split(dy),
        blocks.split_vector(origin),
        strict=True,
    ):
        product = work[: len(x_block)]
        torch.sub(x_block, origin_block, out=product)
        sums.append(dy_block.sum(dim, dtype=blocks.dtype))
        products.append(product.mul_(dy_block).sum(dim))
    return tuple(blocks.per_channel(sums, products).sum(1))


def _pieces(x: Tensor) -> int:
    """Into how many rows to cut a channel of an image for PyTorch's own
    kernel; 0 where it would not do."""
    if x.device.type != 'cpu' or not x.is_contiguous():
        return 0
    if x.dtype not in (torch.float32, torch.float64):
        return 0
    return _equal_pieces(x[0, 0].numel())


@lru_cache
def _equal_pieces(length: int) -> int:
    """Fewest equal pieces of at most ``LONGEST_ROW``; 0 if too short."""
    fewest = -(-length // LONGEST_ROW)
    for pieces in range(fewest, length // SHORTEST_ROW + 1):
        if length % pieces == 0:
            return pieces
    return 0


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


def input_gradient(
    x: Tensor,
    dy: Tensor,
    dx: Tensor,
    origin: Tensor,
    slope: Tensor,
    shift: Tensor,
    scale: Tensor,
) -> None:
    """Write ``((x - origin) * slope + dy + shift) * scale`` into ``dx``."""
    blocks = Blocks(x)
    for x_block, dy_block, dx_block, origin_block, *constants in zip(
        *map(blocks.split, (x, dy, dx)),
        *map(blocks.split_vector, (origin, slope, shift, scale)),
        strict=True,
    ):
        slope_block, shift_block, scale_block = constants
        result = _result(dx_block, blocks.dtype)
        torch.sub(x_block, origin_block, out=result)
        torch.addcmul(dy_block, result, slope_block, out=result)
        result.add_(shift_block).mul_(scale_block)
        _deliver(result, dx_block)


def _result(block: Tensor, dtype: torch.dtype) -> Tensor:
    """Where to compute a block: in place, unless it is half precision."""
    return (
        block if block.dtype == dtype else torch.empty_like(block, dtype=dtype)
    )


def _deliver(result: Tensor, block: Tensor) -> None:
    if result is not block:
        block.copy_(result)
