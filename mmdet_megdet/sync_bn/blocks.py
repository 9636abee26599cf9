# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Per-channel arithmetic on blocks of a tensor that fit a cache.

What costs time on large tensors is memory traffic, and allocating full-size
temporaries most of all; a block that stays in the cache takes any number of
passes nearly for nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

# In float32: two megabytes, for a CPU's cache (measured: from 2^17 to 2^20 it
# makes little difference on large tensors, and on small ones fewer calls are
# faster; 2^15 takes up to twice as long); and 64 MB on devices where what
# counts is few kernels.
CPU_BLOCK_ELEMENTS = 1 << 19
DEVICE_BLOCK_ELEMENTS = 1 << 24


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32, or float64 for float64: never the half formats."""
    return torch.promote_types(dtype, torch.float32)


def dense(x: Tensor) -> Tensor:
    """``x`` itself if it is contiguous or channels last, else a copy."""
    if x.is_contiguous() or x.movedim(1, -1).is_contiguous():
        return x
    return x.contiguous()


class Blocks:
    """How tensors of one shape and layout are cut into blocks.

    A contiguous ``(N, C, *)`` has a row for each channel of each image: a
    block is some whole images ``(n, C, length)``, or, where a single one is
    too large, some of its rows. Channels last (and ``(N, C)``) has a column
    for each channel: a block is some rows ``(rows, C)``.

    Args:
        x (Tensor): Not empty, :func:`dense`.
    """

    def __init__(self, x: Tensor) -> None:
        self.images, self.channels = x.shape[:2]
        self.count = x.numel() // self.channels
        spatial = self.count // self.images
        self.by_row = x.is_contiguous() and spatial > 1
        # The dimension of a block that a channel's elements run along.
        self.dim = -1 if self.by_row else 0
        on_cpu = x.device.type == 'cpu'
        size = CPU_BLOCK_ELEMENTS if on_cpu else DEVICE_BLOCK_ELEMENTS
        width = spatial if self.by_row else self.channels
        self.rows = max(1, size // width)
        # Images in a block; 0 where one image is several.
        self.whole = self.rows // self.channels if self.by_row else 0
        self.dtype = compute_dtype(x.dtype)

    def split(self, x: Tensor) -> list[Tensor]:
        """The blocks of a tensor: views where it has the same layout."""
        if not self.by_row:
            matrix = x.movedim(1, -1).reshape(-1, self.channels)
            return [*matrix.split(self.rows)]
        images = x.reshape(self.images, self.channels, -1)
        if self.whole:
            return [*images.split(self.whole)]
        return [block for image in images for block in image.split(self.rows)]

    def split_vector(self, vector: Tensor) -> list[Tensor]:
        """A per-channel vector ``(C, )`` as what broadcasts over each block,
        in the dtype for computing."""
        vector = vector.to(self.dtype)
        if not self.by_row:
            return [vector[None]] * -(-self.count // self.rows)
        if self.whole:
            return [vector[:, None]] * -(-self.images // self.whole)
        return [*vector[:, None].split(self.rows)] * self.images

    def work(self, x: Tensor) -> Tensor:
        """A buffer for a block, in the dtype for computing."""
        first = self.split(x)[0]
        return torch.empty_like(first, dtype=self.dtype)

    def per_channel(self, *sums: list[Tensor]) -> Tensor:
        """Sums of each block along :attr:`dim`, as float64.

        Args:
            sums (list[Tensor]): For each kind of sum, those of all blocks.

        Returns:
            Tensor: ``(len(sums), parts, C)``. One part is an image, or a
            block if channels are columns.
        """
        parts = torch.cat([part for kind in sums for part in kind])
        return parts.double().view(len(sums), -1, self.channels)

    def part_counts(self, device: torch.device) -> float | Tensor:
        """Positions in each part of :meth:`per_channel`: one number if all
        have as many, else ``(parts, 1)``."""
        if self.by_row:
            return self.count / self.images
        number = -(-self.count // self.rows)
        if number * self.rows == self.count:
            return float(self.rows)
        # Filled on the device: a copy from the host would wait for it.
        counts = torch.full(
            (number, 1), self.rows, dtype=torch.float64, device=device
        )
        counts[-1:] = self.count - (number - 1) * self.rows
        return counts
