# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""BN groups: the process groups of the ranks that share statistics."""

from __future__ import annotations

import weakref
from datetime import timedelta

import torch
import torch.distributed as dist

from ..recipe import check_bn_size, ranks_per_group
from ..upstream.torch_names import outside_graphs

__all__ = [
    'bn_group',
    'check_bn_size',
    'group_timeout',
    'ranks_per_group',
    'world_size',
]

# Thread blocks of NCCL for one of BatchNorm's collectives. A communicator's
# memory grows with them (hundreds of MB by default, NVIDIA/nccl issue 964),
# and what travels is 33 KB at the most.
MOST_CTAS = 2

# Keyed by the default group and not kept by modules: a job that is
# initialised again gets groups of its own, and models stay copyable. The
# values map a number of ranks per group to this rank's group.
_groups: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def world_size() -> int:
    """Number of ranks of the job; 1 where no process group is initialised."""
    if not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.group.WORLD.size()


@outside_graphs
def bn_group(
    ranks: int | None, device: torch.device
) -> dist.ProcessGroup | None:
    """The process group in which this rank's BatchNorm communicates.

    Even where it holds all ranks it is a group of its own: on the default
    group BatchNorm's collectives would interleave with DDP's gradient
    buckets, whose order may differ from rank to rank. Its timeout is that of
    the default group, which ``dist.new_group`` does not inherit; of a group
    that does not tell its timeout it is the backend's default.

    The first call for a number of ranks creates the groups and is therefore
    a collective: all ranks have to make it, in the same order. It ends with
    a first all-reduce in the group, which is when NCCL connects the ranks:
    in the middle of backward that would wait for the device.

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
        timeout = group_timeout(default, device)
        for first in range(0, all_ranks, ranks):
            members = list(range(first, first + ranks))
            group = dist.new_group(
                members, timeout=timeout, pg_options=_small(timeout)
            )
            if dist.get_rank() in members:
                groups[ranks] = group
        first_sum = torch.zeros(1, dtype=torch.float64, device=device)
        dist.all_reduce(first_sum, group=groups[ranks])
    return groups[ranks]


def _small(timeout: timedelta | None) -> object | None:
    """Return NCCL's options for a small communicator; None for others."""
    if 'nccl' not in dist.get_backend_config():
        return None
    options = dist.ProcessGroupNCCL.Options()
    # Builds for an NCCL without communicator settings have none.
    config = getattr(options, 'config', None)
    if not hasattr(config, 'max_ctas'):
        return None
    config.max_ctas = MOST_CTAS
    if timeout is not None:
        options._timeout = timeout
    return options


def group_timeout(
    group: dist.ProcessGroup, device: torch.device
) -> timedelta | None:
    """The timeout of a group's collectives on a device; None if not told."""
    try:
        return group._get_backend(device).options._timeout
    except (RuntimeError, AttributeError):
        # A group written in Python has no backend; some backends have no
        # options, or none that tell a timeout.
        return None
