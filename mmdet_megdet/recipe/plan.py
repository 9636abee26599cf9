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
from math import isqrt, log2
from typing import NamedTuple

from ..errors import ConfigError

LINEAR_RULE = (
    'The linear rule multiplies the learning rate by the same factor as the '
    'batch. MegDet (section 3) derives it from an assumption weaker than the '
    'usual one: not that the gradients of the k small batches which a large '
    'one replaces are equal, but that their variance is. k steps with rate r '
    'then scatter as much as one step with k r. It is an assumption: check '
    'the loss of the first epochs.'
)


# BN groups


def check_bn_size(bn_size: int | None) -> None:
    """Refuse what cannot be a number of images.

    Raises:
        ConfigError: If ``bn_size`` is neither None nor a positive int.
    """
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
    """Return the next smaller and the next larger BN size that can be had.

    A group holds a whole number of ranks that divides the world size. At
    either end there may be none.
    """
    sizes = [images_per_gpu * ranks for ranks in divisors(world_size)]
    below = [size for size in sizes if size < bn_size][-1:]
    above = [size for size in sizes if size > bn_size][:1]
    return below + above


def ranks_per_group(
    bn_size: int | None, images_per_gpu: int, world_size: int
) -> int:
    """Return how many consecutive ranks make a BN group.

    Args:
        bn_size (int, optional): Images over which statistics are taken, as
            in the paper. None stands for all ranks.
        images_per_gpu (int): Images that each rank sees at once.
        world_size (int): Number of ranks.

    Returns:
        int: A divisor of ``world_size``; 1 means no communication.

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


# Plans


class Split(NamedTuple):
    """A batch split over GPUs, whether it divides or not.

    The fields are :class:`BatchPlan`'s arguments.
    """

    world_size: int
    images_per_gpu: int
    total_batch_size: int
    bn_size: int | None

    @property
    def images_at_once(self) -> int:
        """Images of all ranks in one micro-step."""
        return self.world_size * self.images_per_gpu

    def problems(self) -> list[str]:
        """Return why the split cannot be; nothing where it can."""
        found = []
        if self.total_batch_size % self.images_at_once:
            found.append(self._total_problem())
        size = self.bn_size
        if size is not None and not group_ranks(
            size, self.images_per_gpu, self.world_size
        ):
            found.append(self._bn_problem(size))
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

    def _bn_problem(self, size: int) -> str:
        what = f'cannot give a BN size of {size}'
        if self.images_at_once < size:
            return f'{self._at_once()} {what}'
        ranks, rest = divmod(size, self.images_per_gpu)
        if rest:
            return (
                f'{self.images_per_gpu} image(s) per GPU {what}, which is no '
                'whole number of GPUs'
            )
        return (
            f'{self.world_size} GPU(s) with {self.images_per_gpu} image(s) '
            f'each {what}: they do not split into groups of {ranks} GPUs'
        )


class PlanError(ConfigError):
    """A batch that cannot be split so, and what could be run instead.

    Attributes:
        problems (list[str]): Why not.
        asked (Split): The numbers that were asked for.
        nearest (list[Split]): Splits that can be, least changed first.
    """

    def __init__(self, problems: list[str], asked: Split) -> None:
        super().__init__(problems, asked)
        self.problems = problems
        self.asked = asked
        self.nearest = nearest_splits(asked)

    def explain(self, total_option: str = '--total-batch {}') -> str:
        """Return the problems, and the options with which it would run.

        Args:
            total_option (str): How the user sets the total batch size, with
                ``{}`` for the number.
        """
        options = dict(
            images_per_gpu='--images-per-gpu {}',
            bn_size='--bn-size {}',
            total_batch_size=total_option,
            world_size='on {} GPU(s)',
        )
        ways = []
        for split in self.nearest:
            names = _changed(self.asked, split)
            ways.append(
                ' '.join(
                    text.format(getattr(split, name))
                    for name, text in options.items()
                    if name in names
                )
            )
        return (
            f'{"; and ".join(self.problems)}. Nothing is rounded. What would '
            f'run, least changed first: {"; or ".join(ways)}.'
        )

    def __str__(self) -> str:
        return self.explain()


@dataclass(frozen=True)
class BatchPlan:
    """A batch of ``total_batch_size`` images on given hardware.

    Contract: a plan that exists multiplies out. ``world_size *
    images_per_gpu * accumulation == total_batch_size``, and the ranks split
    into BN groups that hold ``bn_size`` images each. What does not divide is
    refused when the plan is made; nothing is rounded.

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

    Examples:
        >>> plan = BatchPlan(8, 4, total_batch_size=256, bn_size=32)
        >>> plan.accumulation, plan.ranks_per_bn_group
        (8, 8)
        >>> plan.iterations(updates=1000)
        8000
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
        split = Split(
            self.world_size,
            self.images_per_gpu,
            self.total_batch_size,
            self.bn_size,
        )
        problems = split.problems()
        if problems:
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

    def iterations(self, updates: int) -> int:
        """Return the micro-steps that make this many optimizer updates."""
        return updates * self.accumulation

    def learning_rate(self, base_lr: float, base_batch_size: int) -> float:
        """Return the learning rate by the linear rule (``LINEAR_RULE``).

        Args:
            base_lr (float): A learning rate that is known to work...
            base_batch_size (int): ...with this number of images an update.
        """
        return base_lr * self.total_batch_size / base_batch_size


# What would run instead

# Among equally small changes, first what leaves the recipe as it is.
_PREFERENCE = ('images_per_gpu', 'bn_size', 'world_size', 'total_batch_size')


def nearest_splits(asked: Split) -> list[Split]:
    """Return what could be run instead, least changed first.

    One split for each way to change the numbers (more and fewer GPUs are two
    ways), and none that changes more kinds of numbers than it has to.

    Args:
        asked (Split): A split with problems.

    Returns:
        list[Split]: Splits without; those that change the fewest numbers
        come first, among them those that keep the total batch, and among
        these those that change by the smallest factors.
    """
    chosen: dict[frozenset[str], Split] = {}
    for split in sorted(_candidates(asked), key=lambda s: _cost(asked, s)):
        way = _way(asked, split)
        if not any(simpler <= way for simpler in chosen):
            chosen[way] = split
    return list(chosen.values())


def _changed(asked: Split, split: Split) -> list[str]:
    """Names of the numbers that differ, the dearest last."""
    return [n for n in _PREFERENCE if getattr(asked, n) != getattr(split, n)]


def _way(asked: Split, split: Split) -> frozenset[str]:
    fewer = split.world_size < asked.world_size
    return frozenset(
        f'{name} {fewer}' if name == 'world_size' else name
        for name in _changed(asked, split)
    )


def _cost(asked: Split, split: Split) -> tuple:
    names = _changed(asked, split)
    distance = sum(
        abs(log2(getattr(split, name) / getattr(asked, name)))
        for name in names
    )
    order = [_PREFERENCE.index(name) for name in names]
    # The total batch is what a recipe is made for, and kept if it can be.
    # Rounded, so that halving and doubling cost the same. The split itself
    # settles what is left.
    return (
        len(names),
        'total_batch_size' in names,
        round(distance, 9),
        order,
        split._replace(bn_size=0),
    )


def _candidates(asked: Split) -> Iterator[Split]:
    """Numbers near the asked ones with which the total batch divides."""
    total = asked.total_batch_size
    for world in {asked.world_size, *divisors(total)}:
        for images in {asked.images_per_gpu, *divisors(total)}:
            below = total - total % (world * images)
            if below == total:
                totals = [total]
            elif world == asked.world_size:
                totals = [n for n in (below, below + world * images) if n]
            else:
                continue
            for bn_size in _bn_sizes(asked.bn_size, images, world):
                yield from (Split(world, images, n, bn_size) for n in totals)


def _bn_sizes(
    size: int | None, images: int, world: int
) -> Sequence[int | None]:
    if size is None or group_ranks(size, images, world):
        return [size]
    return nearest_bn_sizes(size, images, world)


@cache
def divisors(number: int) -> list[int]:
    """Return all divisors of a positive number, in ascending order."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
