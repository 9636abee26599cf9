# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Per-channel arithmetic on blocks of a tensor that fit a cache.

What costs time on large tensors is memory traffic, and allocating full-size
temporaries most of all; a block that stays in the cache takes any number of
passes nearly for nothing.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ..moments import compute_dtype

# In float32: two megabytes, for a CPU's cache (2^17 to 2^20 make little
# difference, 2^15 takes up to twice as long); and 64 MB on devices, where what
# counts is few kernels.
CPU_BLOCK_ELEMENTS = 1 << 19
DEVICE_BLOCK_ELEMENTS = 1 << 24
# So many float32 additions may follow one another in PyTorch's fused CPU
# kernels: they add up a row in one go, in vector lanes of 8 or more.
LONGEST_PIECE = 1024
# Rows shorter than this cost more in overhead than in arithmetic.
SHORTEST_PIECE = 32


@lru_cache
def equal_pieces(length: int) -> int:
    """Return into how few equal pieces a row can be cut; 0 for none."""
    fewest = -(-length // LONGEST_PIECE)
    for pieces in range(fewest, length // SHORTEST_PIECE + 1):
        if length % pieces == 0:
            return pieces
    return 0


class Blocks:
    """How tensors of one shape and layout are cut into blocks.

    A contiguous ``(N, C, *)`` is taken as a matrix with a row for each
    channel of each image, and channels last (and ``(N, C)``) as one with a
    column for each channel. A block is some rows of it. Sums run along rows
    or columns and have ``parts`` results for each channel: one for each
    image, or for each block if channels are columns.

    Args:
        x (Tensor): Not empty, :func:`~.layout.dense`.
    """

    def __init__(self, x: Tensor) -> None:
        images, self.channels = x.shape[:2]
        self.count = x.numel() // self.channels
        spatial = self.count // images
        self.by_row = x.is_contiguous() and spatial > 1
        # The dimension of a block that a channel's elements run along.
        self.dim = -1 if self.by_row else 0
        on_cpu = x.device.type == 'cpu'
        size = CPU_BLOCK_ELEMENTS if on_cpu else DEVICE_BLOCK_ELEMENTS
        self.width = spatial if self.by_row else self.channels
        self.height = max(1, size // self.width)
        number = -(-x.numel() // (self.width * self.height))
        self.single = number == 1
        self.parts = images if self.by_row else number
        self.dtype = compute_dtype(x.dtype)
        # Into how many to cut a row for a fused kernel; 0 where none will do.
        fused = on_cpu and self.by_row
        self.pieces = equal_pieces(self.width) if fused else 0

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return a tensor's blocks: views where it has the same layout."""
        if not self.by_row:
            x = x.movedim(1, -1)
        matrix = x.reshape(-1, self.width)
        # On small tensors the time goes into such views.
        return (matrix,) if self.single else matrix.split(self.height)

    def split_vectors(self, *vectors: Tensor) -> list[tuple[Tensor, ...]]:
        """Return vectors as what broadcasts over each block.

        They are ``(C, )``, or ``(parts, C)`` with a row for each part. Each
        block has all of them, in the dtype for computing.
        """
        stacked = torch.stack([v.expand(self.parts, -1) for v in vectors])
        stacked = stacked.to(self.dtype)
        if self.by_row:
            stacked = stacked.view(len(vectors), -1, 1)
        if self.single:
            return [stacked.unbind()]
        rows = self.height if self.by_row else 1
        return [block.unbind() for block in stacked.split(rows, 1)]

    def per_channel(self, *sums: list[Tensor]) -> Tensor:
        """Return sums of all blocks, as float64 ``(kinds, parts, C)``."""
        together = torch.cat([block for kind in sums for block in kind])
        return together.double().view(len(sums), self.parts, self.channels)

    def part_counts(self, device: torch.device) -> float | Tensor:
        """Return the positions in each part: one number, or (parts, 1)."""
        if self.by_row or self.parts == 1:
            return self.count / self.parts
        # Filled on the device: a copy from the host would wait for it.
        counts = torch.full(
            (self.parts, 1), self.height, dtype=torch.float64, device=device
        )
        counts[-1:] = self.count - (self.parts - 1) * self.height
        return counts
