# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The Triton kernels; :mod:`.fused` launches them.

``x`` is a matrix, ``rows`` x ``width``: contiguous, with a row for each
channel of each image and sums along the rows (AXIS 1); or channels last, with
a column for each channel and sums along the columns (AXIS 0). A program takes
a *chunk*: ``tiles`` tiles of ROWS x COLUMNS elements that follow one another
along the axis. A contiguous tile lies in one row (ROWS is 1).

**Statistics in one read.** A chunk's values are centred by ``o``, the mean of
its first tile, in registers; ``d = x - o`` is then (nearly) free of rounding,
however far from zero the values are. Its sums ``f = sum(d)``, ``s = sum(d^2)``
over ``n`` values are in the dtype for computing. Chunks are put together in
float64 about the first chunk's origin ``r``, with ``e = o - r``::

    F = sum(f + n e)      S = sum(s + (2 f + n e) e)
    sum(x) = N r + F      sum(x^2) = (S - F^2 / N) + sum(x)^2 / N

Where a first tile is unlike the rest of its chunk (padding), ``s`` is larger
than the chunk's own second moment, at most by a factor of ``tiles + 1``.

**Forward**, with the group's ``n``, ``sum(x)`` and ``sum(x^2)``::

    mean = sum(x) / n        var = max(sum(x^2) / n - mean^2, 0)
    s = 1 / sqrt(var + eps)  origin = mean, rounded; rest = mean - origin
    y = (x - origin) (s weight) + (bias - rest s weight)

**Backward**, with ``a = sum(dy)`` and ``b = sum(dy (x - mean))``, of which
``sum(dy (x - origin))`` is ``b + rest a``::

    dbias = a    dweight = b s    slope = s^2 b / n
    dx = (dy - (x - origin) slope - (a / n - rest slope)) (s weight)

Vectors of float64 are ``exact`` (s, rest), of the dtype for computing ``low``
(origin, scale, shift).

Triton hands Python's floats over as float32, so ``eps`` and ``momentum`` come
in a high and a low part. Sizes are not specialised, or every new image size
would compile the kernels again; ``width`` comes in units of UNIT, 16 or 1,
which is all that vector loads have to know of it.
"""

# Triton gives meaning to annotations: arguments have none but constexpr.
# ruff: noqa: ANN001, ANN202, ANN201

from __future__ import annotations

from functools import partial

import triton
import triton.language as tl

# Everything but the matrices, whose alignment allows vector loads.
_kernel = partial(
    triton.jit,
    do_not_specialize=[
        *('partials', 'sums', 'forward_sums', 'exact', 'low'),
        *('weight', 'bias', 'dweight', 'dbias'),
        *('running_mean', 'running_var', 'batches'),
        *('rows', 'units', 'lines', 'channels', 'chunks', 'tiles', 'parts'),
        *('extent', 'span', 'count'),
        *('eps', 'eps_rest', 'momentum', 'momentum_rest'),
    ],
)


@triton.jit
def _place(lines, chunks, AXIS: tl.constexpr):
    """Return a program's line (row, or block of columns) and chunk."""
    program = tl.program_id(0).to(tl.int64)
    if AXIS == 1:
        return program // chunks, program % chunks
    else:
        # Neighbours share rows, which memory likes.
        return program % lines, program // lines


@triton.jit
def _tile(
    line,
    tile,
    rows,
    width,
    AXIS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Return a tile's offsets in the matrix, and which are inside."""
    if AXIS == 1:
        r = line + tl.arange(0, ROWS)
        c = tile * COLUMNS + tl.arange(0, COLUMNS)
    else:
        r = tile * ROWS + tl.arange(0, ROWS)
        c = line * COLUMNS + tl.arange(0, COLUMNS)
    inside = (r < rows)[:, None] & (c < width)[None, :]
    return r[:, None] * width + c[None, :], inside


@triton.jit
def _channels(
    line,
    channels,
    AXIS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Return the channels of a line, and which of them there are."""
    if AXIS == 1:
        c = line % channels + tl.arange(0, ROWS)
    else:
        c = line * COLUMNS + tl.arange(0, COLUMNS)
    return c, c < channels


@triton.jit
def _part(line, chunk, channels, chunks, AXIS: tl.constexpr):
    """Return the number of a chunk among those of its channels."""
    if AXIS == 1:
        return line // channels * chunks + chunk
    else:
        return chunk


@_kernel
def partial_moments(
    x,
    partials,
    rows,
    units,
    lines,
    channels,
    chunks,
    tiles,
    parts,
    UNIT: tl.constexpr,
    AXIS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write origin, first and second moment of each chunk: (3, parts, C)."""
    dtype = partials.dtype.element_ty
    width = units.to(tl.int64) * UNIT
    line, chunk = _place(lines, chunks, AXIS)
    first_tile = chunk * tiles
    at, inside = _tile(line, first_tile, rows, width, AXIS, ROWS, COLUMNS)
    v = tl.load(x + at, mask=inside, other=0.0).to(dtype)
    number = tl.maximum(tl.sum(inside.to(dtype), AXIS), 1.0)
    origin = tl.sum(v, AXIS) / number
    centre = tl.expand_dims(origin, AXIS)
    d = tl.where(inside, v - centre, 0.0)
    first = d
    second = d * d
    for step in range(1, tiles):
        tile = first_tile + step
        at, inside = _tile(line, tile, rows, width, AXIS, ROWS, COLUMNS)
        v = tl.load(x + at, mask=inside, other=0.0).to(dtype)
        d = tl.where(inside, v - centre, 0.0)
        first += d
        second += d * d
    c, known = _channels(line, channels, AXIS, ROWS, COLUMNS)
    out = partials + _part(line, chunk, channels, chunks, AXIS) * channels + c
    size = parts.to(tl.int64) * channels
    tl.store(out, origin, mask=known)
    tl.store(out + size, tl.sum(first, AXIS), mask=known)
    tl.store(out + 2 * size, tl.sum(second, AXIS), mask=known)


@_kernel
def combine_moments(
    partials,
    sums,
    channels,
    chunks,
    parts,
    extent,
    span,
    count,
    PARTS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Write this rank's sums: sum, sum of squares, count: (2C + 1, ).

    ``extent`` is the matrix' length along the axis, ``span`` a chunk's; the
    last one of a line may be shorter.
    """
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    known = c < channels
    reference = tl.load(partials + c, mask=known, other=0.0).to(tl.float64)
    size = parts.to(tl.int64) * channels
    first = tl.zeros([PARTS, CHANNELS], tl.float64)
    second = tl.zeros([PARTS, CHANNELS], tl.float64)
    for start in range(0, parts, PARTS):
        p = start + tl.arange(0, PARTS).to(tl.int64)
        inside = (p < parts)[:, None] & known[None, :]
        at = partials + p[:, None] * channels + c[None, :]
        o = tl.load(at, mask=inside, other=0.0).to(tl.float64)
        f = tl.load(at + size, mask=inside, other=0.0).to(tl.float64)
        s = tl.load(at + 2 * size, mask=inside, other=0.0).to(tl.float64)
        n = tl.minimum(extent - p % chunks * span, span).to(tl.float64)
        n = tl.where(inside, n[:, None], 0.0)
        e = o - reference[None, :]
        moved = f + n * e
        first += moved
        second += s + (f + moved) * e
    n = tl.zeros([CHANNELS], tl.float64) + count
    moved = tl.sum(first, 0)
    centred = tl.maximum(tl.sum(second, 0) - moved * moved / n, 0.0)
    total = n * reference + moved
    tl.store(sums + c, total, mask=known)
    tl.store(sums + channels + c, centred + total * (total / n), mask=known)
    # Each program holds the same count; the first one tells it.
    last = tl.arange(0, CHANNELS)
    first_program = (last == 0) & (tl.program_id(0) == 0)
    tl.store(sums + 2 * channels + last, n, mask=first_program)


@_kernel
def finish_forward(
    sums,
    weight,
    bias,
    exact,
    low,
    running_mean,
    running_var,
    batches,
    channels,
    eps,
    eps_rest,
    momentum,
    momentum_rest,
    CUMULATIVE: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Write the vectors for normalising; update the running statistics.

    One program, since every channel needs the number of batches and one has
    to change it.
    """
    dtype = low.dtype.element_ty
    count = tl.load(sums + 2 * channels)
    n = tl.maximum(count, 1.0)
    if running_mean is not None:
        seen = tl.load(batches)
        if CUMULATIVE:
            rate = 1.0 / (seen + 1).to(tl.float64)
        else:
            rate = 0.0 * n + momentum + momentum_rest
    for start in range(0, channels, CHANNELS):
        c = start + tl.arange(0, CHANNELS)
        known = c < channels
        mean = tl.load(sums + c, mask=known, other=0.0) / n
        square = tl.load(sums + channels + c, mask=known, other=0.0) / n
        var = tl.maximum(square - mean * mean, 0.0)
        invstd = 1.0 / tl.sqrt(var + eps + eps_rest)
        origin = mean.to(dtype)
        rest = mean - origin.to(tl.float64)
        scale = invstd
        if weight is not None:
            w = tl.load(weight + c, mask=known, other=0.0).to(tl.float64)
            scale = invstd * w
        shift = -rest * scale
        if bias is not None:
            shift += tl.load(bias + c, mask=known, other=0.0).to(tl.float64)
        tl.store(exact + c, invstd, mask=known)
        tl.store(exact + channels + c, rest, mask=known)
        tl.store(low + c, origin, mask=known)
        tl.store(low + channels + c, scale.to(dtype), mask=known)
        tl.store(low + 2 * channels + c, shift.to(dtype), mask=known)
        if running_mean is not None:
            at = running_mean + c
            old = tl.load(at, mask=known, other=0.0).to(tl.float64)
            new = tl.where(count >= 1.0, old + rate * (mean - old), old)
            tl.store(at, new.to(running_mean.dtype.element_ty), mask=known)
            at = running_var + c
            old = tl.load(at, mask=known, other=0.0).to(tl.float64)
            unbiased = var * (n / tl.maximum(n - 1.0, 1.0))
            new = tl.where(count >= 2.0, old + rate * (unbiased - old), old)
            tl.store(at, new.to(running_var.dtype.element_ty), mask=known)
    if running_mean is not None:
        # Not before every thread has read it.
        tl.debug_barrier()
        tl.store(batches, seen + (count >= 1.0).to(tl.int64))


@_kernel
def normalise(
    x,
    y,
    low,
    rows,
    units,
    lines,
    channels,
    chunks,
    tiles,
    UNIT: tl.constexpr,
    AXIS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the output."""
    width = units.to(tl.int64) * UNIT
    line, chunk = _place(lines, chunks, AXIS)
    c, known = _channels(line, channels, AXIS, ROWS, COLUMNS)
    origin = tl.load(low + c, mask=known, other=0.0)
    scale = tl.load(low + channels + c, mask=known, other=0.0)
    shift = tl.load(low + 2 * channels + c, mask=known, other=0.0)
    origin = tl.expand_dims(origin, AXIS)
    scale = tl.expand_dims(scale, AXIS)
    shift = tl.expand_dims(shift, AXIS)
    for step in range(0, tiles):
        tile = chunk * tiles + step
        at, inside = _tile(line, tile, rows, width, AXIS, ROWS, COLUMNS)
        v = tl.load(x + at, mask=inside, other=0.0).to(low.dtype.element_ty)
        result = (v - origin) * scale + shift
        tl.store(y + at, result.to(y.dtype.element_ty), mask=inside)


@_kernel
def partial_gradient_sums(
    x,
    dy,
    low,
    partials,
    rows,
    units,
    lines,
    channels,
    chunks,
    tiles,
    parts,
    UNIT: tl.constexpr,
    AXIS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write sum(dy) and sum(dy (x - origin)) of each chunk: (2, parts, C)."""
    dtype = partials.dtype.element_ty
    width = units.to(tl.int64) * UNIT
    line, chunk = _place(lines, chunks, AXIS)
    c, known = _channels(line, channels, AXIS, ROWS, COLUMNS)
    origin = tl.expand_dims(tl.load(low + c, mask=known, other=0.0), AXIS)
    first = tl.zeros([ROWS, COLUMNS], dtype)
    second = tl.zeros([ROWS, COLUMNS], dtype)
    for step in range(0, tiles):
        tile = chunk * tiles + step
        at, inside = _tile(line, tile, rows, width, AXIS, ROWS, COLUMNS)
        d = tl.load(x + at, mask=inside, other=0.0).to(dtype) - origin
        # Nothing outside, where d is not 0.
        g = tl.load(dy + at, mask=inside, other=0.0).to(dtype)
        first += g
        second += g * d
    out = partials + _part(line, chunk, channels, chunks, AXIS) * channels + c
    tl.store(out, tl.sum(first, AXIS), mask=known)
    size = parts.to(tl.int64) * channels
    tl.store(out + size, tl.sum(second, AXIS), mask=known)


@_kernel
def combine_gradient_sums(
    partials,
    exact,
    sums,
    dweight,
    dbias,
    channels,
    parts,
    PARTS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Write this rank's a and b, (2C, ), and what follows for the layer."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    known = c < channels
    size = parts.to(tl.int64) * channels
    first = tl.zeros([PARTS, CHANNELS], tl.float64)
    second = tl.zeros([PARTS, CHANNELS], tl.float64)
    for start in range(0, parts, PARTS):
        p = start + tl.arange(0, PARTS).to(tl.int64)
        inside = (p < parts)[:, None] & known[None, :]
        at = partials + p[:, None] * channels + c[None, :]
        first += tl.load(at, mask=inside, other=0.0).to(tl.float64)
        second += tl.load(at + size, mask=inside, other=0.0).to(tl.float64)
    a = tl.sum(first, 0)
    rest = tl.load(exact + channels + c, mask=known, other=0.0)
    b = tl.sum(second, 0) - rest * a
    tl.store(sums + c, a, mask=known)
    tl.store(sums + channels + c, b, mask=known)
    if dweight is not None:
        invstd = tl.load(exact + c, mask=known, other=0.0)
        value = (b * invstd).to(dweight.dtype.element_ty)
        tl.store(dweight + c, value, mask=known)
    if dbias is not None:
        tl.store(dbias + c, a.to(dbias.dtype.element_ty), mask=known)


@_kernel
def input_gradient(
    x,
    dy,
    dx,
    exact,
    low,
    forward_sums,
    sums,
    rows,
    units,
    lines,
    channels,
    chunks,
    tiles,
    UNIT: tl.constexpr,
    AXIS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the input's gradient by the group's sums."""
    dtype = low.dtype.element_ty
    width = units.to(tl.int64) * UNIT
    line, chunk = _place(lines, chunks, AXIS)
    c, known = _channels(line, channels, AXIS, ROWS, COLUMNS)
    share = 1.0 / tl.maximum(tl.load(forward_sums + 2 * channels), 1.0)
    invstd = tl.load(exact + c, mask=known, other=0.0)
    rest = tl.load(exact + channels + c, mask=known, other=0.0)
    a = tl.load(sums + c, mask=known, other=0.0)
    b = tl.load(sums + channels + c, mask=known, other=0.0)
    slope = invstd * invstd * (b * share)
    shift = a * share - rest * slope
    slope = tl.expand_dims(slope.to(dtype), AXIS)
    shift = tl.expand_dims(shift.to(dtype), AXIS)
    origin = tl.expand_dims(tl.load(low + c, mask=known, other=0.0), AXIS)
    scale = tl.load(low + channels + c, mask=known, other=0.0)
    scale = tl.expand_dims(scale, AXIS)
    for step in range(0, tiles):
        tile = chunk * tiles + step
        at, inside = _tile(line, tile, rows, width, AXIS, ROWS, COLUMNS)
        d = tl.load(x + at, mask=inside, other=0.0).to(dtype) - origin
        g = tl.load(dy + at, mask=inside, other=0.0).to(dtype)
        result = (g - d * slope - shift) * scale
        tl.store(dx + at, result.to(dx.dtype.element_ty), mask=inside)
