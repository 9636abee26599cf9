# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the benchmarks share: ranks, steps that take turns, tables.

Importing it lets scripts import ``mmdet_megdet`` from a clone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
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
from torch.utils.benchmark import Measurement, TaskSpec, timer

ROOT = Path(__file__).resolve().parents[2]
if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(ROOT))
TIMEOUT = timedelta(seconds=300)


def positive(text: str) -> int:
    """Parse a whole number from 1 up, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f'{text} must be 1 or more')
    return number


def parser_of(doc: str, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser that shows a module's first line and the defaults."""
    parser = argparse.ArgumentParser(
        description=doc.split('\n\n')[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.set_defaults(**defaults)
    return parser


def check_ranks(
    parser: argparse.ArgumentParser, world_size: int, device: str
) -> None:
    """Refuse more ranks than GPUs: NCCL does not let two share one."""
    gpus = torch.cuda.device_count()
    if device == 'cuda' and world_size > gpus:
        parser.error(
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
        *args: Handed on.

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
    options: dict[str, Any] = dict(backend='gloo')
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


def take_turns(
    kinds: dict[str, Callable[[], object]],
    rounds: int,
    device: torch.device,
    calls: int = 1,
) -> dict[str, Measurement]:
    """Time every kind of step once a round; called on every rank.

    Each round has another order, so that all kinds see the machine in the
    same state. Ranks start a step together.

    Args:
        kinds (dict[str, Callable]): Makes a step of each kind.
        rounds (int): Not counting one to warm up.
        device (torch.device): Where the steps run.
        calls (int): Steps behind one another that are timed as one, so that
            the host runs ahead of a GPU as in training. Defaults to 1.

    Returns:
        dict[str, Measurement]: Seconds of a step of each kind, of the rank
        that took longest.
    """
    names = list(kinds)
    seconds = torch.zeros(rounds + 1, len(names), dtype=torch.float64)
    for number in range(rounds + 1):
        for place in range(len(names)):
            kind = (number + place) % len(names)
            dist.barrier()
            # torch's timer waits for a GPU.
            begin = timer()
            for _ in range(calls):
                kinds[names[kind]]()
            seconds[number, kind] = timer() - begin
    slowest = seconds[1:].to(device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return {
        name: Measurement(calls, values, TaskSpec(name, ''))
        for name, values in zip(names, slowest.T.tolist(), strict=True)
    }


def caption(args: argparse.Namespace, more: str) -> str:
    """Return what has to be known of a run: machine, versions, load."""
    machine = f'{os.cpu_count()} CPUs, {args.threads} thread(s) a rank'
    if args.device == 'cuda':
        machine = f'{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}'
    load = os.getloadavg()[0]
    return f'{machine}; torch {torch.__version__}; {more}; load {load:.1f}'


def save(path: Path, caption: str, **content: Any) -> None:
    """Write what was measured as JSON, and say so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(run=caption, **content), indent=1))
    print(f'Written to {path}')


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
