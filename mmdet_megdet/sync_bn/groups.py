# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""BN groups: from images to ranks, and the process groups of those ranks."""

from __future__ import annotations

import weakref
from datetime import timedelta

import torch
import torch.distributed as dist

# Keyed by the default group and not kept by modules: a job that is
# initialised again gets groups of its own, and models stay copyable. The
# values map a number of ranks per group to this rank's group.
_groups: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def world_size() -> int:
    """Number of ranks of the job; 1 where no process group is initialised."""
    if not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.group.WORLD.size()


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
    if bn_size is None:
        return world_size
    ranks, rest = divmod(bn_size, images_per_gpu)
    if rest == 0 and ranks > 0 and world_size % ranks == 0:
        return ranks
    sizes = [
        images_per_gpu * n
        for n in range(1, world_size + 1)
        if world_size % n == 0
    ]
    below = [size for size in sizes if size < bn_size][-1:]
    above = [size for size in sizes if size > bn_size][:1]
    nearest = ' or '.join(str(size) for size in below + above)
    raise ValueError(
        f'bn_size={bn_size} cannot be had from {world_size} rank(s) with '
        f'{images_per_gpu} image(s) per GPU: a BN group holds a whole number '
        'of ranks, and that number divides the world size. The nearest BN '
        f'sizes are {nearest}; or change the images per GPU or the number of '
        'GPUs; bn_size=None takes all ranks.'
    )


def bn_group(
    ranks: int | None, device: torch.device
) -> dist.ProcessGroup | None:
    """The process group in which this rank's BatchNorm communicates.

    Even where it holds all ranks it is a group of its own: on the default
    group BatchNorm's collectives would interleave with DDP's gradient
    buckets, whose order may differ from rank to rank. Its timeout is that of
    the default group, which ``dist.new_group`` does not inherit.

    The first call for a number of ranks creates the groups and is therefore
    a collective: all ranks have to make it, in the same order.

    Args:
        ranks (int, optional): Consecutive ranks per group. None: all.
        device (torch.device): Where the tensors to be reduced lie; tells
            which of the default group's backends has the timeout.

    Returns:
        ProcessGroup or None: None where there is nothing to synchronise
        with: no process group is initialised, or this rank is alone.

    Raises:
        RuntimeError: If ``ranks`` does not divide the world size, as in a
            model that was resolved for another job.
    """
    all_ranks = world_size()
    ranks = ranks or all_ranks
    if all_ranks % ranks:
        raise RuntimeError(
            f'BN groups of {ranks} ranks do not fit a world size of '
            f'{all_ranks}: the model was resolved for another job. Call '
            'resolve_bn_groups again.'
        )
    if ranks == 1:
        return None
    default = dist.group.WORLD
    groups = _groups.setdefault(default, {})
    if ranks not in groups:
        timeout = _timeout(default, device)
        for first in range(0, all_ranks, ranks):
            members = list(range(first, first + ranks))
            group = dist.new_group(members, timeout=timeout)
            if dist.get_rank() in members:
                groups[ranks] = group
    return groups[ranks]


def _timeout(
    group: dist.ProcessGroup, device: torch.device
) -> timedelta | None:
    try:
        options = group._get_backend(device).options
    except (RuntimeError, AttributeError):
        # A group written in Python has no backend and no timeout of its own.
        return None
    return options._timeout
