# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Many ranks as threads of this process, on PyTorch's threaded group."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.multi_threaded_pg import (
    ProcessLocalGroup,
    _install_threaded_pg,
    _uninstall_threaded_pg,
)


def run_threads(fn: Callable, world_size: int, *args: Any) -> list[Any]:
    """Call ``fn(rank, world_size, *args)`` on ranks that are threads.

    Returns what each rank did, or raises what the first one raised.
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
            ProcessLocalGroup.exception_handle(error)
            raise
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    _install_threaded_pg()
    store = dist.HashStore()
    try:
        with ThreadPoolExecutor(world_size) as pool:
            return list(pool.map(work, range(world_size)))
    finally:
        ProcessLocalGroup.reset()
        _uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
