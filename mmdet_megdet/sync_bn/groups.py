# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""BN groups: the process groups of the ranks that share statistics."""

from __future__ import annotations

import weakref

import torch
import torch.distributed as dist

from ..errors import ConfigError, MegDetError
from ..upstream.torch_names import (
    group_timeout,
    outside_graphs,
    small_nccl_options,
)

# Thread blocks of NCCL for one of BatchNorm's collectives, of 33 KB at most. A
# communicator's memory grows with them (NVIDIA/nccl issue 964).
MOST_BLOCKS = 2

# By default group and ranks per group, and not kept by modules: a job that is
# initialised again gets groups of its own, and models stay copyable.
_groups: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def world_size() -> int:
    """Return the number of ranks; 1 without a process group."""
    default = dist.group.WORLD if dist.is_available() else None
    return 1 if default is None else default.size()


@outside_graphs
def bn_group(
    ranks: int | None, device: torch.device
) -> dist.ProcessGroup | None:
    """Return the process group in which this rank's BatchNorm communicates.

    Even where it holds all ranks it is a group of its own: on the default
    group BatchNorm's collectives would interleave with DDP's gradient
    buckets, whose order may differ from rank to rank. Its timeout is that of
    the default group. None where this rank is alone.

    The first call for a number of ranks is a collective: all ranks have to
    make it, in the same order. It ends with a first all-reduce in the group,
    which is when NCCL connects the ranks.

    Args:
        ranks (int, optional): Consecutive ranks per group. None: all.
        device (torch.device): Where the tensors to be reduced lie.
    """
    all_ranks = world_size()
    ranks = ranks or all_ranks
    if all_ranks % ranks:
        raise ConfigError(
            f'BN groups of {ranks} ranks do not fit a world size of '
            f'{all_ranks}: the model was resolved for another job. Call '
            'resolve_bn_groups again.'
        )
    if ranks == 1:
        return None
    default = dist.group.WORLD
    assert default is not None
    groups = _groups.setdefault(default, {})
    if ranks not in groups:
        timeout = group_timeout(default, device)
        options = None
        if 'nccl' in dist.get_backend_config():
            options = small_nccl_options(MOST_BLOCKS, timeout)
        for first in range(0, all_ranks, ranks):
            members = list(range(first, first + ranks))
            group = dist.new_group(members, timeout, pg_options=options)
            if dist.get_rank() in members:
                groups[ranks] = group
        first_sum = torch.zeros(1, dtype=torch.float64, device=device)
        dist.all_reduce(first_sum, group=groups[ranks])
    return groups[ranks]


def check_same_layer(name: str, group: dist.ProcessGroup) -> None:
    """Refuse, on all ranks of a BN group, to be in different layers.

    Strict mode, for debugging: collectives and a wait for the host ahead of
    each forward collective of the layer ``name``. A rank that leaves a layer
    out meets the others in its next one, in the next iteration if need be.
    """
    names = [''] * dist.get_world_size(group)
    dist.all_gather_object(names, name, group=group)
    if len(set(names)) == 1:
        return
    ranks = dist.get_process_group_ranks(group)
    pairs = zip(ranks, names, strict=True)
    calls = ', '.join(f'rank {rank}: {called}' for rank, called in pairs)
    raise MegDetError(
        'The ranks of a BN group are in different synchronised layers at the '
        f'same time ({calls}). Take MegDetSyncBN out of parts that a rank may '
        'skip, or call them with an empty batch.'
    )
