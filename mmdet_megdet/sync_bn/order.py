# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Strict mode: a check that all ranks of a BN group call the same layer."""

from __future__ import annotations

import zlib

import torch
import torch.distributed as dist


def check_same_layer(
    name: str, group: dist.ProcessGroup, device: torch.device
) -> None:
    """Compare the layer that this rank is in with those of its BN group.

    One small collective and a wait for the host, ahead of each forward
    collective of the layer: for debugging. A rank that leaves a layer out
    meets the others in its next one, in the next iteration if need be.

    Args:
        name (str): The layer's name in the model.
        group (ProcessGroup): The BN group.
        device (torch.device): Where the group's tensors lie.

    Raises:
        RuntimeError: On every rank of the group, if the names differ.
    """
    size = dist.get_world_size(group)
    own = torch.tensor([zlib.crc32(name.encode())], device=device)
    others = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(others, own, group=group)
    if len({other.item() for other in others}) == 1:
        return
    names = [''] * size
    dist.all_gather_object(names, name, group=group)
    ranks = dist.get_process_group_ranks(group)
    calls = ', '.join(
        f'rank {rank}: {called}'
        for rank, called in zip(ranks, names, strict=True)
    )
    raise RuntimeError(
        'The ranks of a BN group are in different synchronised layers at the '
        f'same time ({calls}). All ranks have to call the same MegDetSyncBN '
        'layers in the same order; without strict mode their sums would have '
        'been mixed. Take BatchNorm out of parts that a rank may skip, or '
        'make every rank call them, with an empty batch if need be.'
    )
