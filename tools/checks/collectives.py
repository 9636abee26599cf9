# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""All-reduce: is it right, how long does it take, which rank is slow?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from rich.filesize import decimal

from mmdet_megdet.sync_bn import CollectiveTimer, kernels
from mmdet_megdet.text import these_ranks

from .machine import PLAIN_REMEDY
from .ranks import Meeting
from .report import Finding, failure, passed, warning

# Of BatchNorm's vectors, and of one of DDP's buckets; bytes.
_SMALL = (1 << 10, 1 << 13, 1 << 15)
_LARGE = dict(cpu=16 << 20, cuda=64 << 20)
# BatchNorm's vector of 2048 channels, and DDP's buckets meanwhile.
_BN_NUMBERS = 2 * 2048 + 1
_BUCKETS, _SMALL_PER_BUCKET = 8, 4
# Of a fixed product of matrices: enough to time, little to wait for.
_MATRIX = dict(cpu=384, cuda=4096)
_ROUNDS, _SLOW = 10, 1.5


class Group(NamedTuple):
    """This rank's BN group, and its name for the report."""

    name: str
    ranks: list[int]
    process_group: dist.ProcessGroup


def check_kernels(meeting: Meeting) -> Iterator[Finding]:
    """Say which kernels each rank runs; a collective."""
    by_rank = meeting.gather(kernels.outcome(meeting.device))
    for outcome in sorted(set(by_rank)):
        ranks = [r for r, found in enumerate(by_rank) if found == outcome]
        text = f'{these_ranks(ranks)}: {outcome}'
        if len(ranks) == len(by_rank) and not kernels.fault(meeting.device):
            yield passed('kernels', text)
        else:
            yield warning('kernels', text, PLAIN_REMEDY)


def told(
    meeting: Meeting, group: Group, check: str, faults: list[str], remedy: str
) -> Finding:
    """Return one finding of what all ranks found at fault; a collective."""
    by_rank = meeting.gather(faults)
    bad = [rank for rank, found in enumerate(by_rank) if found]
    if not bad:
        return passed(check, f'{group.name}: right on every rank')
    text = f'{group.name}: wrong on {these_ranks(bad)}: {by_rank[bad[0]][0]}'
    return failure(check, text, f'Do not train on this. {remedy}')


def check_sums(meeting: Meeting, group: Group) -> Iterator[Finding]:
    """Hold sums of whole numbers against their closed form; a collective.

    Rank r contributes ``(r + 1) * (1 + i % 7)`` at place i: the sum is exact
    in every dtype used, up to 1,500 ranks in float32.
    """
    faults = []
    factor = sum(rank + 1 for rank in group.ranks)
    for dtype in (torch.float32, torch.float64, torch.int64):
        for length in (1, 1025, 262_145):
            places = torch.arange(length, device=meeting.device) % 7 + 1
            sums = (places * (meeting.rank + 1)).to(dtype)
            dist.all_reduce(sums, group=group.process_group)
            wrong = sums != (places * factor).to(dtype)
            if wrong.any():
                first = int(wrong.nonzero()[0])
                faults.append(
                    f'{int(wrong.sum())} of {length} sums in '
                    f'{str(dtype).removeprefix("torch.")} are wrong, the '
                    f'first {sums[first].item():g} instead of '
                    f'{(places[first] * factor).item()}'
                )
    yield told(
        meeting,
        group,
        'all-reduce',
        faults,
        'Look for a device, driver or network card that fails (nvidia-smi -q, '
        'dmesg), or NCCL variables that force an algorithm (NCCL_ALGO, '
        'NCCL_PROTO).',
    )


def check_beside_buckets(meeting: Meeting, group: Group) -> Iterator[Finding]:
    """Reduce as backward does: BatchNorm's vectors beside DDP's buckets.

    On two communicators, of which one has large all-reduces on their way
    that nobody waits for. Where NCCL starts their kernels in another order on
    another rank, this does not end, and the watch says where it stands.
    """
    device = meeting.device
    size = _LARGE[device.type] // 4
    buckets = [torch.ones(size, device=device) for _ in range(_BUCKETS)]
    under_way, sums = [], []
    for bucket in buckets:
        under_way.append(dist.all_reduce(bucket, async_op=True))
        for _ in range(_SMALL_PER_BUCKET):
            sums.append(
                torch.ones(_BN_NUMBERS, dtype=torch.float64, device=device)
            )
            dist.all_reduce(sums[-1], group=group.process_group)
    for work in under_way:
        work.wait()
    right = all(bool((s == len(group.ranks)).all()) for s in sums)
    right &= all(bool((b == len(meeting.hosts)).all()) for b in buckets)
    yield told(
        meeting,
        group,
        'all-reduce beside buckets',
        [] if right else ['sums are not the number of ranks'],
        'Collectives of two process groups disturb each other '
        '(docs/troubleshooting.md, "It hangs").',
    )


def check_speed(meeting: Meeting, group: Group) -> Iterator[Finding]:
    """Time all-reduces: each rank's median, of the slowest; a collective."""
    large = _LARGE[meeting.device.type]
    own = {
        size: _all_reduce_seconds(meeting.device, group, size)
        for size in (*_SMALL, large)
    }
    by_rank = meeting.gather(own)
    slowest = {size: max(found[size] for found in by_rank) for size in own}
    texts = (f'{decimal(n)} {slowest[n] * 1e6:.0f} us' for n in _SMALL)
    yield passed('latency', f'{group.name}: {", ".join(texts)}')
    # What each rank's link carries in a ring, as nccl-tests reckon it.
    ranks = len(group.ranks)
    bus = 2 * (ranks - 1) / ranks * large / slowest[large]
    yield passed(
        'bandwidth',
        f'{group.name}: {decimal(large)} in {slowest[large] * 1e3:.3g} ms, on '
        f'the bus {decimal(int(bus))}/s',
    )


def check_pace(meeting: Meeting) -> Iterator[Finding]:
    """Find the slowest rank by a fixed computation; a collective."""
    side = _MATRIX[meeting.device.type]
    matrix = torch.ones(side, side, device=meeting.device)
    own = []
    for turn in range(1 + _ROUNDS):
        dist.barrier(group=meeting.control)
        begin = time.perf_counter()
        (matrix @ matrix)[0, 0].item()
        if turn:  # the first warms up
            own.append(time.perf_counter() - begin)
    times = meeting.gather(median(own))
    slowest = max(range(len(times)), key=times.__getitem__)
    ratio = times[slowest] / median(times)
    text = (
        f'rank {slowest} takes {times[slowest] * 1e3:.3g} ms for a fixed '
        f'computation, {ratio:.2f} times the median of all ranks'
    )
    if ratio > _SLOW:
        yield warning(
            'slowest rank',
            text,
            'Every rank waits for it in every layer: look for other programs '
            'on its machine, a hot or throttled device (nvidia-smi -q -d '
            'PERFORMANCE), too few cores.',
        )
    else:
        yield passed('slowest rank', text)


def _all_reduce_seconds(
    device: torch.device, group: Group, size: int
) -> float:
    tensor = torch.zeros(size // 4, device=device)
    timers = [CollectiveTimer(device) for _ in range(12)]
    for timer in timers:
        with timer:
            dist.all_reduce(tensor, group=group.process_group)
    # Without the first two, which warm up.
    return median(timer.seconds() for timer in timers[2:])
