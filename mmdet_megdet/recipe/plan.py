# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A total batch on given hardware: what divides, and what would instead.

A batch of ``total_batch_size`` images is split over ``world_size`` ranks,
``images_per_gpu`` images at once and as many micro-steps as that takes.
BatchNorm takes its statistics over ``bn_size`` images, those of consecutive
ranks in one micro-step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from itertools import product
from math import log2
from typing import NamedTuple

from ..errors import ConfigError


def check_bn_size(bn_size: int | None) -> None:
    """Refuse what is neither None nor a positive int, by ConfigError."""
    if bn_size is None or (type(bn_size) is int and bn_size > 0):
        return
    raise ConfigError(
        f'bn_size={bn_size!r} must be a positive number of images, or None '
        'for the images of all ranks.'
    )


def group_ranks(
    bn_size: int | None, images_per_gpu: int, world_size: int
) -> int | None:
    """Return :func:`ranks_per_group`'s number, or None where there is none."""
    if bn_size is None:
        return world_size
    ranks, rest = divmod(bn_size, images_per_gpu)
    fits = rest == 0 and ranks > 0 and world_size % ranks == 0
    return ranks if fits else None


def nearest_bn_sizes(
    bn_size: int, images_per_gpu: int, world_size: int
) -> list[int]:
    """Return the next smaller and the next larger BN size, where there are."""
    sizes = [images_per_gpu * ranks for ranks in divisors(world_size)]
    below = [size for size in sizes if size < bn_size]
    above = [size for size in sizes if size > bn_size]
    return below[-1:] + above[:1]


def ranks_per_group(
    bn_size: int | None, images_per_gpu: int, world_size: int
) -> int:
    """Return how many consecutive ranks make a BN group.

    It divides ``world_size``; 1 means no communication.

    Raises:
        ConfigError: If the ranks cannot be split so, with the nearest sizes
            that can be had.
    """
    ranks = group_ranks(bn_size, images_per_gpu, world_size)
    if bn_size is None or ranks is not None:
        return ranks or world_size
    sizes = nearest_bn_sizes(bn_size, images_per_gpu, world_size)
    raise ConfigError(
        f'bn_size={bn_size} cannot be had from {world_size} rank(s) with '
        f'{images_per_gpu} image(s) per GPU: a BN group holds a whole number '
        'of ranks, and that number divides the world size. The nearest BN '
        f'sizes are {" or ".join(map(str, sizes))}; or change the images per '
        'GPU or the number of GPUs; bn_size=None takes all ranks.'
    )


class BatchSplit(NamedTuple):
    """:class:`BatchPlan`'s arguments, whether they divide or not."""

    world_size: int
    images_per_gpu: int
    total_batch_size: int
    bn_size: int | None

    def problems(self) -> list[str]:
        """Return why the numbers do not divide; an empty list if they do."""
        world_size, images, total, bn_size = self
        at_once = world_size * images
        asked = (
            f'{world_size} GPU(s) x {images} image(s) per GPU = {at_once} at '
            'once'
        )
        found = []
        if at_once > total:
            found.append(f'{asked} are more than a total batch of {total}')
        elif total % at_once:
            found.append(
                f'{asked} do not divide a total batch of {total} ({total} = '
                f'{total // at_once} x {at_once} + {total % at_once})'
            )
        if not group_ranks(bn_size, images, world_size):
            found.append(
                f'{asked} cannot give a BN size of {bn_size}: a BN group is a '
                'whole number of GPUs, and that divides their number'
            )
        return found


class PlanError(ConfigError):
    """A batch that cannot be split so, and what could be run instead.

    Attributes:
        problems (list[str]): Why not.
        asked (BatchSplit): The numbers that were asked for.
        nearest (list[BatchSplit]): Splits that can be, least changed first.
    """

    def __init__(self, problems: list[str], asked: BatchSplit) -> None:
        super().__init__(problems, asked)
        self.problems = problems
        self.asked = asked
        self.nearest = nearest_splits(asked)

    def explain(self, total_option: str = '--total-batch {}') -> str:
        """Return the problems and the remedy as text; see :meth:`remedy`."""
        return (
            f'{"; and ".join(self.problems)}. Nothing is rounded. '
            f'{self.remedy(total_option)}'
        )

    def remedy(self, total_option: str) -> str:
        """Return the options that would run; ``{}`` stands for a number."""
        options = dict(
            images_per_gpu='--images-per-gpu {}',
            bn_size='--bn-size {}',
            world_size='on {} GPU(s)',
            total_batch_size=total_option,
        )
        ways = (
            ' '.join(
                options[name].format(getattr(split, name))
                for name in _changed(self.asked, split)
            )
            for split in self.nearest
        )
        return f'What would run, least changed first: {"; or ".join(ways)}.'

    def __str__(self) -> str:
        return self.explain()


@dataclass(frozen=True)
class BatchPlan:
    """A batch of ``total_batch_size`` images on given hardware.

    Contract: a plan that exists multiplies out. ``world_size *
    images_per_gpu * accumulation == total_batch_size``, and the ranks split
    into BN groups that hold ``bn_size`` images each. Nothing is rounded.

    Args:
        world_size (int): Number of GPUs, one rank each.
        images_per_gpu (int): Images that each rank sees at once.
        total_batch_size (int): Images of an optimizer update. Defaults to
            256, MegDet's.
        bn_size (int, optional): Images over which BatchNorm takes its
            statistics; None stands for those of all ranks. Defaults to None.

    Raises:
        PlanError: If the numbers do not divide, with the nearest that do.
        ConfigError: If a number is not a positive int.
    """

    world_size: int
    images_per_gpu: int
    total_batch_size: int = 256
    bn_size: int | None = None

    def __post_init__(self) -> None:
        for name in ('world_size', 'images_per_gpu', 'total_batch_size'):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f'{name}={value!r} must be a positive int.')
        check_bn_size(self.bn_size)
        split = BatchSplit(*astuple(self))
        if problems := split.problems():
            raise PlanError(problems, split)

    @property
    def images_at_once(self) -> int:
        """Images of all ranks in one micro-step."""
        return self.world_size * self.images_per_gpu

    @property
    def accumulation(self) -> int:
        """Micro-steps of an optimizer update (``accumulative_counts``)."""
        return self.total_batch_size // self.images_at_once

    @property
    def ranks_per_bn_group(self) -> int:
        """Consecutive ranks that share BatchNorm's statistics; 1: local."""
        return ranks_per_group(
            self.bn_size, self.images_per_gpu, self.world_size
        )

    @property
    def images_per_bn_group(self) -> int:
        """``bn_size``, with a number for None."""
        return self.ranks_per_bn_group * self.images_per_gpu


# Among equally small changes, first what leaves the recipe as it is.
_PREFERENCE = ('images_per_gpu', 'bn_size', 'world_size', 'total_batch_size')


def nearest_splits(asked: BatchSplit) -> list[BatchSplit]:
    """Return what could be run instead, least changed first.

    One split for each set of numbers that is changed (more and fewer GPUs are
    two), and none that changes more of them than it has to.
    """
    chosen: list[tuple[set[str], BatchSplit]] = []
    for split in sorted(_candidates(asked), key=lambda s: _cost(asked, s)):
        way = set(_changed(asked, split))
        if split.world_size < asked.world_size:
            way = way - {'world_size'} | {'fewer GPUs'}
        if not any(simpler <= way for simpler, _ in chosen):
            chosen.append((way, split))
    return [split for _, split in chosen]


def _changed(asked: BatchSplit, split: BatchSplit) -> list[str]:
    """Names of the numbers that differ, the dearest last."""
    return [n for n in _PREFERENCE if getattr(asked, n) != getattr(split, n)]


def _cost(asked: BatchSplit, split: BatchSplit) -> tuple:
    """Return a key: fewest changes, total batch kept, smallest factors."""
    names = _changed(asked, split)
    distance = sum(
        abs(log2(getattr(split, name) / getattr(asked, name)))
        for name in names
    )
    return (
        len(names),
        'total_batch_size' in names,
        # Halving and doubling cost the same.
        round(distance, 9),
        [_PREFERENCE.index(name) for name in names],
    )


def _candidates(asked: BatchSplit) -> Iterator[BatchSplit]:
    """Numbers near the asked ones with which the total batch divides."""
    total = asked.total_batch_size
    for world, images in product(
        sorted({asked.world_size, *divisors(total)}),
        sorted({asked.images_per_gpu, *divisors(total)}),
    ):
        below = total - total % (world * images)
        if below == total:
            totals = [total]
        elif world == asked.world_size:
            totals = [n for n in (below, below + world * images) if n]
        else:
            continue
        sizes: Sequence[int | None] = [asked.bn_size]
        if not group_ranks(asked.bn_size, images, world):
            sizes = nearest_bn_sizes(asked.bn_size or 0, images, world)
        yield from (
            BatchSplit(world, images, *n) for n in product(totals, sizes)
        )


@cache
def divisors(number: int) -> list[int]:
    """Return all divisors of a positive number, in ascending order."""
    return [n for n in range(1, number + 1) if number % n == 0]
