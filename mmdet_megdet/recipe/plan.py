# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A total batch on given hardware: what divides, and what would instead.

A batch of ``total_batch_size`` images is split over ``world_size`` ranks,
``images_per_gpu`` images at once and as many micro-steps as that takes.
BatchNorm takes its statistics over ``bn_size`` images, those of consecutive
ranks in one micro-step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import log2

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

    It divides ``world_size``; 1 means no communication. Where the ranks
    cannot be split so, a ConfigError names the nearest sizes that can be had.
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


# The numbers of a batch and how to set them. Among equally small changes of a
# plan, the first leaves the recipe most as it is.
_OPTIONS = dict(
    images_per_gpu='--images-per-gpu {}',
    bn_size='--bn-size {}',
    world_size='on {} GPU(s)',
    total_batch_size='total_batch_size={}',
)


class PlanError(ConfigError):
    """A batch that cannot be split so, and what could be run instead.

    Attributes:
        problems (list[str]): Why not.
        nearest (list[BatchPlan]): Plans that can be, least changed first.
    """

    def __init__(self, asked: BatchPlan) -> None:
        super().__init__(asked)
        self.problems = asked.problems()
        self.nearest = nearest_plans(asked)
        self._asked = asked

    @property
    def remedy(self) -> str:
        """The options that would run, as text."""
        ways = (
            ' '.join(
                _OPTIONS[name].format(getattr(plan, name))
                for name in _changed(self._asked, plan)
            )
            for plan in self.nearest
        )
        return f'What would run, least changed first: {"; or ".join(ways)}.'

    def __str__(self) -> str:
        why = '; and '.join(self.problems)
        return f'{why}. Nothing is rounded. {self.remedy}'


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
        if self.problems():
            raise PlanError(self)

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

    def problems(self) -> list[str]:
        """Return why the numbers do not divide; an empty list if they do."""
        total, at_once = self.total_batch_size, self.images_at_once
        asked = (
            f'{self.world_size} GPU(s) x {self.images_per_gpu} image(s) per '
            f'GPU = {at_once} at once'
        )
        found = []
        if at_once > total:
            found.append(f'{asked} are more than a total batch of {total}')
        elif total % at_once:
            found.append(
                f'{asked} do not divide a total batch of {total} ({total} = '
                f'{total // at_once} x {at_once} + {total % at_once})'
            )
        if not group_ranks(self.bn_size, self.images_per_gpu, self.world_size):
            found.append(
                f'{asked} cannot give a BN size of {self.bn_size}: a BN group '
                'is a whole number of GPUs, and that divides their number'
            )
        return found


def nearest_plans(asked: BatchPlan) -> list[BatchPlan]:
    """Return what could be run instead, least changed first.

    One plan for each set of numbers that is changed (more and fewer GPUs are
    two), and none that changes more of them than it has to.
    """
    chosen: list[tuple[set[str], BatchPlan]] = []
    for plan in sorted(_candidates(asked), key=lambda p: _cost(asked, p)):
        way = set(_changed(asked, plan))
        if plan.world_size < asked.world_size:
            way = way - {'world_size'} | {'fewer GPUs'}
        if not any(simpler <= way for simpler, _ in chosen):
            chosen.append((way, plan))
    return [plan for _, plan in chosen]


def _changed(asked: BatchPlan, plan: BatchPlan) -> list[str]:
    """Names of the numbers that differ, the dearest last."""
    return [n for n in _OPTIONS if getattr(asked, n) != getattr(plan, n)]


def _cost(asked: BatchPlan, plan: BatchPlan) -> tuple:
    """Return a key: fewest changes, total batch kept, smallest factors."""
    names = _changed(asked, plan)
    factors = [getattr(plan, n) / getattr(asked, n) for n in names]
    # Halving and doubling cost the same.
    distance = round(sum(abs(log2(factor)) for factor in factors), 9)
    preference = [list(_OPTIONS).index(name) for name in names]
    return len(names), 'total_batch_size' in names, distance, preference


def _candidates(asked: BatchPlan) -> Iterator[BatchPlan]:
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
        for rest in product(totals, sizes):
            yield BatchPlan(world, images, *rest)


@cache
def divisors(number: int) -> list[int]:
    """Return all divisors of a positive number, in ascending order."""
    return [n for n in range(1, number + 1) if number % n == 0]
