# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""How many ranks hold the images over which BatchNorm takes statistics."""

from __future__ import annotations

from functools import cache
from math import isqrt


def check_bn_size(bn_size: int | None) -> None:
    """Refuse what cannot be a number of images.

    Raises:
        ValueError: If ``bn_size`` is neither None nor a positive int.
    """
    if bn_size is None or (type(bn_size) is int and bn_size > 0):
        return
    raise ValueError(
        f'bn_size={bn_size!r} must be a positive number of images, or None '
        'for the images of all ranks.'
    )


@cache
def divisors(number: int) -> list[int]:
    """All divisors of a positive number, in ascending order."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def nearest_bn_sizes(
    bn_size: int, images_per_gpu: int, world_size: int
) -> list[int]:
    """The BN sizes next to one that cannot be had.

    A group has to hold a whole number of ranks that divides the world size.

    Returns:
        list[int]: The next smaller and the next larger one, where there are.
    """
    sizes = [images_per_gpu * ranks for ranks in divisors(world_size)]
    below = [size for size in sizes if size < bn_size][-1:]
    above = [size for size in sizes if size > bn_size][:1]
    return below + above


def group_ranks(
    bn_size: int | None, images_per_gpu: int, world_size: int
) -> int | None:
    """As :func:`ranks_per_group`, with None for what cannot be had."""
    if bn_size is None:
        return world_size
    ranks, rest = divmod(bn_size, images_per_gpu)
    fits = rest == 0 and ranks > 0 and world_size % ranks == 0
    return ranks if fits else None


def ranks_per_group(
    bn_size: int | None, images_per_gpu: int, world_size: int
) -> int:
    """How many consecutive ranks make a BN group of ``bn_size`` images.

    Args:
        bn_size (int, optional): Images over which statistics are taken, as
            in the paper. None stands for all ranks.
        images_per_gpu (int): Images that each rank sees at once.
        world_size (int): Number of ranks.

    Returns:
        int: A divisor of ``world_size``; 1 means no communication.

    Raises:
        ValueError: If the ranks cannot be split so, with the nearest sizes
            that can be had.
    """
    ranks = group_ranks(bn_size, images_per_gpu, world_size)
    if ranks is not None:
        return ranks
    sizes = nearest_bn_sizes(bn_size, images_per_gpu, world_size)
    nearest = ' or '.join(map(str, sizes))
    raise ValueError(
        f'bn_size={bn_size} cannot be had from {world_size} rank(s) with '
        f'{images_per_gpu} image(s) per GPU: a BN group holds a whole number '
        'of ranks, and that number divides the world size. The nearest BN '
        f'sizes are {nearest}; or change the images per GPU or the number of '
        'GPUs; bn_size=None takes all ranks.'
    )
