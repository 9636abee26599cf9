# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The process groups in which BatchNorm's collectives run."""

from __future__ import annotations

import weakref
from datetime import timedelta

import torch
import torch.distributed as dist

# Keyed by the default group and not kept by modules: a job that is
# initialised again gets a new group, and models stay copyable.
_world_groups: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def world_group(device: torch.device) -> dist.ProcessGroup | None:
    """The group over which BatchNorm takes the statistics of all ranks.

    It holds the same ranks as the default group but is a group of its own:
    on the default group BatchNorm's collectives would interleave with DDP's
    gradient buckets, whose order may differ from rank to rank. Its timeout
    is that of the default group, which ``dist.new_group`` does not inherit.

    The first call in a process creates the group and is therefore a
    collective: every rank has to make it.

    Args:
        device (torch.device): Where the tensors to be reduced lie; tells
            which of the default group's backends has the timeout.

    Returns:
        ProcessGroup or None: None where there is nothing to synchronise
        with: no process group is initialised, or it has one rank.
    """
    if not dist.is_available() or not dist.is_initialized():
        return None
    default = dist.group.WORLD
    if default.size() == 1:
        return None
    if default not in _world_groups:
        _world_groups[default] = dist.new_group(
            timeout=_timeout(default, device)
        )
    return _world_groups[default]


def _timeout(
    group: dist.ProcessGroup, device: torch.device
) -> timedelta | None:
    options = getattr(group._get_backend(device), 'options', None)
    return getattr(options, '_timeout', None)
