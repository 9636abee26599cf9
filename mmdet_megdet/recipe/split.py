# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The four numbers that say how a batch is split over hardware."""

from __future__ import annotations

from typing import NamedTuple

from .bn_groups import group_ranks


class Split(NamedTuple):
    """A batch split over GPUs, whether it divides or not.

    Args:
        world_size (int): Number of GPUs, one rank each.
        images_per_gpu (int): Images that each rank sees at once.
        total_batch_size (int): Images of an optimizer update.
        bn_size (int, optional): Images over which BatchNorm takes its
            statistics; None stands for those of all ranks.
    """

    world_size: int
    images_per_gpu: int
    total_batch_size: int
    bn_size: int | None

    @property
    def images_at_once(self) -> int:
        """Images of all ranks in one iteration."""
        return self.world_size * self.images_per_gpu

    def problems(self) -> list[str]:
        """Why the split cannot be; empty where it can."""
        found = []
        if self.total_batch_size % self.images_at_once:
            found.append(self._total_problem())
        if (
            group_ranks(self.bn_size, self.images_per_gpu, self.world_size)
            is None
        ):
            found.append(self._bn_problem())
        return found

    def _at_once(self) -> str:
        return (
            f'{self.world_size} GPU(s) x {self.images_per_gpu} image(s) per '
            f'GPU = {self.images_at_once} at once'
        )

    def _total_problem(self) -> str:
        total, at_once = self.total_batch_size, self.images_at_once
        if at_once > total:
            return f'{self._at_once()} are more than a total batch of {total}'
        return (
            f'{self._at_once()} do not divide a total batch of {total} '
            f'({total} = {total // at_once} x {at_once} + {total % at_once})'
        )

    def _bn_problem(self) -> str:
        size, images = self.bn_size, self.images_per_gpu
        what = f'cannot give a BN size of {size}'
        if self.images_at_once < size:
            return f'{self._at_once()} {what}'
        ranks, rest = divmod(size, images)
        if rest:
            return (
                f'{images} image(s) per GPU {what}, which is no whole number '
                'of GPUs'
            )
        return (
            f'{self.world_size} GPU(s) with {images} image(s) each {what}: '
            f'they do not split into groups of {ranks} GPUs'
        )
