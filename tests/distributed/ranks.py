# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Runs a function on several gloo ranks and brings back what each returns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _rank_main(
    rank: int, fn: Callable, world_size: int, folder: str, args: tuple
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        'gloo',
        init_method=f'file://{folder}/store',
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=90),
    )
    try:
        torch.save(fn(rank, world_size, *args), f'{folder}/{rank}.pt')
        dist.barrier()
    finally:
        dist.destroy_process_group()


def run_ranks(fn: Callable, world_size: int, *args: Any) -> list[Any]:
    """Call ``fn(rank, world_size, *args)`` on ``world_size`` gloo ranks.

    Returns what each rank did, which ``torch.save`` must store; raises with
    the traceback of the first rank that failed, and ends the others.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(
            _rank_main,
            args=(fn, world_size, folder, args),
            nprocs=world_size,
            start_method='fork',
        )
        files = [f'{folder}/{rank}.pt' for rank in range(world_size)]
        return [torch.load(file, weights_only=False) for file in files]
