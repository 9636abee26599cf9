# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Many ranks as threads of this process, on PyTorch's threaded group."""

from __future__ import annotations

import threading
from collections.abc import Callable
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
    results: list[Any] = [None] * world_size
    errors: dict[int, BaseException] = {}

    def work(rank: int) -> None:
        try:
            dist.init_process_group(
                'threaded', rank=rank, world_size=world_size, store=store
            )
            results[rank] = fn(rank, world_size, *args)
        except BaseException as error:
            errors[rank] = error
            # Ends the collectives in which the others wait.
            ProcessLocalGroup.exception_handle(error)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    _install_threaded_pg()
    store = dist.HashStore()
    try:
        threads = [
            threading.Thread(target=work, args=(rank,))
            for rank in range(world_size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        ProcessLocalGroup.reset()
        _uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
    if errors:
        raise errors[min(errors)]
    return results
