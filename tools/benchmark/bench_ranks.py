# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Starts the ranks of a benchmark and brings back what rank 0 measured."""

from __future__ import annotations

import argparse
import os
import pickle
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT = timedelta(seconds=300)


def positive(text: str) -> int:
    """An argparse type: a whole number from 1 up."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f'{text} must be 1 or more')
    return number


def check_ranks(world_size: int, device: str) -> None:
    """Refuse ranks that this machine has no device for.

    Raises:
        ValueError: If there are fewer GPUs than ranks: NCCL does not let two
            ranks share one.
    """
    gpus = torch.cuda.device_count()
    if device == 'cuda' and world_size > gpus:
        raise ValueError(
            f'{world_size} rank(s) need a GPU each and this machine has '
            f'{gpus}: ask for no more ranks than that, or pass --device cpu.'
        )


def run_ranks(
    fn: Callable, world_size: int, device: str, threads: int, *args: Any
) -> Any:
    """Call ``fn(device, *args)`` on every rank of a fresh job.

    Args:
        fn (Callable): A module-level function that takes a
            ``torch.device`` and ``args``.
        world_size (int): Number of processes.
        device (str): 'cpu' (gloo) or 'cuda' (NCCL, one GPU a rank).
        threads (int): Intra-op threads of each process.

    Returns:
        Any: What ``fn`` returned on rank 0.

    Raises:
        torch.multiprocessing.ProcessRaisedException: With the traceback of
            the first rank that failed; the others are ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(
            _rank_main,
            args=(fn, world_size, device, threads, folder, args),
            nprocs=world_size,
            # Forking saves importing everything again, but CUDA forbids it.
            start_method='spawn' if device == 'cuda' else 'fork',
        )
        return pickle.loads((Path(folder) / 'result').read_bytes())


def _rank_main(
    rank: int,
    fn: Callable,
    world_size: int,
    device_type: str,
    threads: int,
    folder: str,
    args: tuple,
) -> None:
    torch.set_num_threads(threads)
    device = torch.device(device_type)
    options = dict(backend='gloo')
    if device_type == 'cuda':
        device = torch.device('cuda', rank)
        torch.cuda.set_device(device)
        options = dict(backend='nccl', device_id=device)
    else:
        # Ranks of one machine talk to each other over the loopback device,
        # whatever its host name resolves to.
        os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')
    dist.init_process_group(
        init_method=f'file://{folder}/store',
        rank=rank,
        world_size=world_size,
        timeout=TIMEOUT,
        **options,
    )
    try:
        result = fn(device, *args)
        if rank == 0:
            (Path(folder) / 'result').write_bytes(pickle.dumps(result))
        dist.barrier()
    finally:
        dist.destroy_process_group()
