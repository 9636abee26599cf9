# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Runs a function on several ranks and brings back what each returns."""

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.testing._internal.distributed import multi_threaded_pg as threaded


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


def run_threads(fn: Callable, world_size: int, *args: Any) -> list[Any]:
    """Do as :func:`run_ranks`, with ranks that are threads of this process.

    Reductions add up in the order of the ranks.
    """

    def work(rank: int) -> Any:
        try:
            dist.init_process_group(
                'threaded', rank=rank, world_size=world_size, store=store
            )
            return fn(rank, world_size, *args)
        except BaseException as error:
            # Ends the collectives in which the others wait.
            threaded.ProcessLocalGroup.exception_handle(error)
            raise
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    threaded._install_threaded_pg()
    store = dist.HashStore()
    try:
        with ThreadPoolExecutor(world_size) as pool:
            return list(pool.map(work, range(world_size)))
    finally:
        threaded.ProcessLocalGroup.reset()
        threaded._uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
