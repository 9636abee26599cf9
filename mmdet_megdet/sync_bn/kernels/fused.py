# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The passes as Triton kernels: how they are cut up and launched.

Forward reads x twice and writes once, backward reads x and dy twice and
writes once; with the two all-reduces a layer makes nine launches. Nothing of
the input's size is allocated but results, and nothing waits for the host.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..moments import Running, compute_dtype
from . import triton_kernels as kernels
from .layout import dense, laid_out_as

Work = tuple[()]
Saved = tuple[Tensor, Tensor, Tensor]

# Elements of a tile, rows and columns: along a row, and of 64 channels. In
# four warps a thread has 16 of them: four 16-byte loads in float32, two in
# half (on AMD, whose warps are twice as wide, two and one). Without vector
# loads each element takes registers for its address, so rows get less.
ROW_TILES = {16: (1, 2048), 1: (1, 1024)}
COLUMN_TILE = (32, 64)
# About so many programs, if there are tiles enough: two times what fills the
# 132 multiprocessors of an H100 with eight each.
PROGRAMS = 2048
# A chunk's float32 sums stay short.
MOST_TILES = 16
# Of the kernels that combine chunks, and of the one that handles vectors.
COMBINED = dict(PARTS=256, CHANNELS=8, num_warps=8)
VECTOR = dict(CHANNELS=1024, num_warps=8)
# What makes 16-byte loads possible, in bytes of an address and in elements of
# a row.
ALIGNMENT = 16


class Plan(NamedTuple):
    """How a tensor is cut up; see :mod:`.triton_kernels`.

    ``sizes`` are ``rows, units, lines, channels, chunks, tiles``, ``kind``
    what kernels are compiled for, ``parts`` the chunks of a channel,
    ``extent`` the matrix' length along the axis, ``span`` a chunk's.
    """

    grid: tuple[int]
    sizes: tuple[int, ...]
    kind: dict[str, int]
    parts: int
    extent: int
    span: int


def plan(x: Tensor) -> Plan:
    """Return how a tensor that is not empty is cut up."""
    images, channels = x.shape[:2]
    positions = x.numel() // channels
    along_rows = x.is_contiguous() and positions > images
    if along_rows:
        rows, width = images * channels, positions // images
        tile, extent, lines = ROW_TILES[unit_of(width)], width, rows
        length = tile[1]
    else:
        rows, width = positions, channels
        tile, extent = COLUMN_TILE, rows
        length, lines = tile[0], -(-channels // tile[1])
    all_tiles = -(-extent // length)
    tiles = min(max(1, all_tiles * lines // PROGRAMS), MOST_TILES)
    chunks = -(-all_tiles // tiles)
    unit = unit_of(width)
    kind = dict(UNIT=unit, AXIS=int(along_rows), ROWS=tile[0], COLUMNS=tile[1])
    return Plan(
        (lines * chunks,),
        (rows, width // unit, lines, channels, chunks, tiles),
        kind | dict(num_warps=4),
        images * chunks if along_rows else chunks,
        extent,
        length * tiles,
    )


def unit_of(width: int) -> int:
    """Return the unit in which a row's length is passed to kernels."""
    return ALIGNMENT if width % ALIGNMENT == 0 else 1


def high_and_low(number: float) -> tuple[float, float]:
    """Return a number's float32 value, and the rest of it."""
    high = torch.tensor(number, dtype=torch.float32).item()
    return high, number - high


def prepare(x: Tensor, model: Tensor | None = None) -> Tensor:
    """Return ``x`` in a layout that the kernels take: the model's, if any."""
    x = dense(x) if model is None else laid_out_as(x, model)
    # At an odd address each kernel would have to be compiled for it too.
    return x.clone() if x.data_ptr() % ALIGNMENT else x


def local_sums(x: Tensor) -> tuple[Tensor, Work]:
    """Return this rank's sums."""
    channels = x.shape[1]
    sums = x.new_empty(2 * channels + 1, dtype=torch.float64)
    if not x.numel():
        return sums.zero_(), ()
    cut = plan(x)
    partials = x.new_empty(
        (3, cut.parts, channels), dtype=compute_dtype(x.dtype)
    )
    with torch.cuda.device_of(x):
        kernels.partial_moments[cut.grid](
            x, partials, *cut.sizes, cut.parts, **cut.kind
        )
        counts = cut.parts, cut.extent, cut.span, x.numel() // channels
        kernels.combine_moments[combined_grid(channels)](
            partials, sums, channels, cut.sizes[4], *counts, **COMBINED
        )
    return sums, ()


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
    channels = x.shape[1]
    y = torch.empty_like(x)
    exact = sums.new_empty(2, channels)
    low = x.new_empty((3, channels), dtype=compute_dtype(x.dtype))
    *buffers, momentum = running or (None, None, None, None)
    numbers = *high_and_low(eps), *high_and_low(momentum or 0.0)
    kind = dict(CUMULATIVE=momentum is None, **VECTOR)
    with torch.cuda.device_of(x):
        kernels.finish_forward[(1,)](
            sums,
            weight,
            bias,
            exact,
            low,
            *buffers,
            channels,
            *numbers,
            **kind,
        )
        if x.numel():
            cut = plan(x)
            kernels.normalise[cut.grid](x, y, low, *cut.sizes, **cut.kind)
    return y, (exact, low, sums)


def gradient_sums(
    x: Tensor,
    dy: Tensor,
    saved: Saved,
    weight_dtype: torch.dtype | None,
    bias_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return this rank's sums, and the gradients of weight and bias."""
    exact, low, _ = saved
    channels = x.shape[1]
    sums = x.new_empty(2 * channels, dtype=torch.float64)
    dweight, dbias = (
        None if dtype is None else x.new_empty(channels, dtype=dtype)
        for dtype in (weight_dtype, bias_dtype)
    )
    if not x.numel():
        for result in (sums, dweight, dbias):
            if result is not None:
                result.zero_()
        return sums, dweight, dbias
    cut = plan(x)
    partials = low.new_empty(2, cut.parts, channels)
    with torch.cuda.device_of(x):
        kernels.partial_gradient_sums[cut.grid](
            x, dy, low, partials, *cut.sizes, cut.parts, **cut.kind
        )
        results = sums, dweight, dbias
        kernels.combine_gradient_sums[combined_grid(channels)](
            partials, exact, *results, channels, cut.parts, **COMBINED
        )
    return sums, dweight, dbias


def begin_input_gradient(x: Tensor, saved: Saved) -> Tensor:
    """Return the input gradient's memory; there is nothing to begin with."""
    return torch.empty_like(x)


def finish_input_gradient(
    x: Tensor, dy: Tensor, dx: Tensor, saved: Saved, sums: Tensor
) -> None:
    """Write the input gradient by the group's sums."""
    if not x.numel():
        return
    exact, low, forward_sums = saved
    cut = plan(x)
    with torch.cuda.device_of(x):
        kernels.input_gradient[cut.grid](
            x, dy, dx, exact, low, forward_sums, sums, *cut.sizes, **cut.kind
        )


def combined_grid(channels: int) -> tuple[int]:
    """Return the programs of a kernel that combines chunks."""
    return (-(-channels // COMBINED['CHANNELS']),)
