# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the benchmarks share: ranks, tables and their captions.

Importing it lets scripts import ``mmdet_megdet`` from a clone.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROOT = Path(__file__).resolve().parents[2]
if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(ROOT))


def parser_of(doc: str, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser that shows a module's first line and the defaults."""
    parser = argparse.ArgumentParser(
        description=doc.split('\n\n')[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.set_defaults(**defaults)
    return parser


def run_ranks(fn: Callable, world_size: int, threads: int, *args: Any) -> Any:
    """Call ``fn(device, *args)`` on every rank; return what rank 0's did.

    Each rank has a GPU, where the machine has any, and so many threads. The
    error of the first one that fails is raised here, and the others are ended.
    ``fn`` is found by its name in its module.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(
            _rank_main,
            args=(fn, world_size, threads, folder, args),
            nprocs=world_size,
            # Forking saves importing everything again, but CUDA forbids it.
            start_method='spawn' if torch.cuda.is_available() else 'fork',
        )
        return pickle.loads((Path(folder) / 'result').read_bytes())


def _rank_main(
    rank: int,
    fn: Callable,
    world_size: int,
    threads: int,
    folder: str,
    args: tuple,
) -> None:
    torch.set_num_threads(threads)
    gpu = torch.cuda.is_available()
    device = torch.device('cuda', rank) if gpu else torch.device('cpu')
    if gpu:
        torch.cuda.set_device(device)
    # Ranks of one machine talk to each other over the loopback device,
    # whatever its host name resolves to.
    os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')
    os.environ['LOCAL_RANK'] = str(rank)  # MMEngine's Runner asks for it
    dist.init_process_group(
        init_method=f'file://{folder}/store',
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=300),
        backend='nccl' if gpu else 'gloo',
        device_id=device if gpu else None,
    )
    try:
        result = fn(device, *args)
        if rank == 0:
            (Path(folder) / 'result').write_bytes(pickle.dumps(result))
        dist.barrier()
    finally:
        dist.destroy_process_group()


def caption(threads: int, more: str) -> str:
    """Return what has to be known of a run: machine, versions, load."""
    machine = f'{os.cpu_count()} CPUs, {threads} thread(s) a rank'
    if torch.cuda.is_available():
        machine = f'{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}'
    load = os.getloadavg()[0]
    return f'{machine}; torch {torch.__version__}; {more}; load {load:.1f}'


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table: one heading for each key, '-' where a row has none.

    Numbers that are not whole are rounded to four digits.
    """
    rows = [
        {k: f'{v:.4g}' if isinstance(v, float) else v for k, v in row.items()}
        for row in rows
    ]
    headings = list(dict.fromkeys(key for row in rows for key in row))
    lines = [headings] + [[row.get(n, '-') for n in headings] for row in rows]
    texts = [f'| {" | ".join(map(str, line))} |' for line in lines]
    return '\n'.join([texts[0], '|---' * len(headings) + '|', *texts[1:]])
