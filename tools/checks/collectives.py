# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""All-reduce: is it right, how long does it take, who is late?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist

from mmdet_megdet.sync_bn import CollectiveTimer, kernels
from mmdet_megdet.text import these_ranks

from .machine import PLAIN_REMEDY
from .ranks import Meeting
from .report import Finding, failure, passed, readable_bytes, warning

SIZES = tuple(4**power for power in range(1, 9))  # bytes: 4 to 64 KB
_REPEATS = 30
_LARGE = dict(cpu=16 << 20, cuda=64 << 20)  # bytes
_LARGE_REPEATS = 5
# Of a fixed product of matrices: enough to time, little to wait for.
_MATRIX = dict(cpu=384, cuda=4096)
_ROUNDS = 10
# BatchNorm's vector of 2048 channels, and DDP's buckets meanwhile.
_BN_NUMBERS = 2 * 2048 + 1
_BUCKETS = 8
_SMALL_PER_BUCKET = 4
_SLOW = 1.5


class Group(NamedTuple):
    """Ranks that reduce together.

    Attributes:
        name (str): For the report.
        ranks (list[int]): This rank's group.
        process_group (ProcessGroup): Of them.
    """

    name: str
    ranks: list[int]
    process_group: dist.ProcessGroup


def check_kernels(meeting: Meeting) -> Iterator[Finding]:
    """Say which kernels each rank runs; a collective."""
    by_rank = meeting.gather(kernels.outcome(meeting.device))
    for outcome in sorted(set(by_rank)):
        ranks = [r for r, found in enumerate(by_rank) if found == outcome]
        if len(ranks) == len(by_rank) and not kernels.fault(meeting.device):
            yield passed('kernels', f'all ranks: {outcome}')
        else:
            text = f'{these_ranks(ranks)}: {outcome}'
            yield warning('kernels', text, PLAIN_REMEDY)


def check_sums(meeting: Meeting, group: Group) -> Iterator[Finding]:
    """Hold sums of whole numbers against their closed form; a collective.

    Rank r contributes ``(r + 1) * (1 + i % 7)`` at place i, so the sum is
    ``sum(r + 1) * (1 + i % 7)``: exact in every dtype used, up to 1,500
    ranks in float32.
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
    by_rank = meeting.gather(faults)
    bad = [rank for rank, found in enumerate(by_rank) if found]
    if bad:
        yield failure(
            'all-reduce',
            f'{group.name}: wrong on {these_ranks(bad)}: {by_rank[bad[0]][0]}',
            'Do not train on this: look for a device, driver or network '
            'card that fails (nvidia-smi -q, dmesg), or NCCL variables that '
            'force an algorithm (NCCL_ALGO, NCCL_PROTO).',
        )
    else:
        yield passed('all-reduce', f'{group.name}: exact sums on every rank')


def check_beside_buckets(
    meeting: Meeting, group: Group, bn: dist.ProcessGroup
) -> Iterator[Finding]:
    """Reduce as backward does: BatchNorm's vectors beside DDP's buckets.

    On two communicators, of which one has large all-reduces on their way
    that nobody waits for. Where NCCL starts their kernels in another order on
    another rank, this does not end, and the watch says where it stands.

    Args:
        meeting (Meeting): All ranks.
        group (Group): Whose BatchNorm it is.
        bn (ProcessGroup): BatchNorm's own of the same ranks.
    """
    check, device = 'all-reduce beside buckets', meeting.device
    size = _LARGE[device.type] // 4
    buckets = [torch.ones(size, device=device) for _ in range(_BUCKETS)]
    under_way, sums = [], []
    begin = time.perf_counter()
    for bucket in buckets:
        under_way.append(dist.all_reduce(bucket, async_op=True))
        for _ in range(_SMALL_PER_BUCKET):
            sums.append(
                torch.ones(_BN_NUMBERS, dtype=torch.float64, device=device)
            )
            dist.all_reduce(sums[-1], group=bn)
    for work in under_way:
        work.wait()
    _wait(device)
    seconds = time.perf_counter() - begin
    right = all(bool((s == len(group.ranks)).all()) for s in sums)
    right &= all(bool((b == len(meeting.hosts)).all()) for b in buckets)
    by_rank = meeting.gather((right, seconds))
    wrong = [rank for rank, (fine, _) in enumerate(by_rank) if not fine]
    if wrong:
        yield failure(
            check,
            f'{group.name}: wrong sums on {these_ranks(wrong)}',
            'Do not train on this: collectives of two process groups disturb '
            'each other (docs/troubleshooting.md, "It hangs").',
        )
    else:
        slowest = max(seconds for _, seconds in by_rank)
        yield passed(
            check,
            f'{group.name}: {len(sums)} of BatchNorm beside {_BUCKETS} of '
            f'{readable_bytes(4 * size)} in {slowest * 1e3:.3g} ms',
        )


def latencies(meeting: Meeting, group: Group) -> dict[int, float]:
    """Time small all-reduces; a collective.

    Returns:
        dict[int, float]: Seconds by bytes: the median of each rank, and of
        those the largest.
    """
    own = {
        size: _all_reduce_seconds(meeting.device, group, size, _REPEATS)
        for size in SIZES
    }
    by_rank = meeting.gather(own)
    return {size: max(found[size] for found in by_rank) for size in SIZES}


def bandwidth(meeting: Meeting, group: Group) -> tuple[int, float]:
    """Return bytes and seconds of a large all-reduce; a collective."""
    size = _LARGE[meeting.device.type]
    own = _all_reduce_seconds(meeting.device, group, size, _LARGE_REPEATS)
    return size, max(meeting.gather(own))


def describe(
    group: Group, small: dict[int, float], size: int, seconds: float
) -> Iterator[Finding]:
    """Tell the figures of :func:`latencies` and :func:`bandwidth`."""
    texts = (
        f'{n} B {t * 1e6:.0f} us'
        if n < 1024
        else f'{n // 1024} KB {t * 1e6:.0f} us'
        for n, t in small.items()
    )
    yield passed('latency', f'{group.name}: {", ".join(texts)}')
    ranks = len(group.ranks)
    # What each rank's link carries in a ring, as nccl-tests reckon it.
    bus = 2 * (ranks - 1) / ranks * size / seconds
    yield passed(
        'bandwidth',
        f'{group.name}: {readable_bytes(size)} in {seconds * 1e3:.3g} ms, '
        f'{readable_bytes(size / seconds)}/s, on the bus '
        f'{readable_bytes(bus)}/s',
    )


def check_pace(meeting: Meeting) -> Iterator[Finding]:
    """Find the slowest rank, by a fixed computation and by arrival."""
    work, waits = [], []
    tensor = torch.zeros(1, device=meeting.device)
    side = _MATRIX[meeting.device.type]
    matrix = torch.ones(side, side, device=meeting.device)
    for turn in range(1 + _ROUNDS):
        dist.barrier(group=meeting.control)
        begin = time.perf_counter()
        matrix @ matrix
        _wait(meeting.device)
        middle = time.perf_counter()
        dist.all_reduce(tensor)
        _wait(meeting.device)
        if turn:  # the first warms up
            work.append(middle - begin)
            waits.append(time.perf_counter() - middle)
    by_rank = meeting.gather((work, waits))
    times = [median(found) for found, _ in by_rank]
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
    late = _lateness([found for _, found in by_rank])
    last = max(range(len(late)), key=late.__getitem__)
    yield passed(
        'last to arrive',
        f'rank {last}, by {late[last] * 1e3:.3g} ms behind the first, at the '
        'median',
    )


def _lateness(waits: list[list[float]]) -> list[float]:
    """Return the median seconds by which each rank comes after the first.

    The last to come waits least; the others wait for it.
    """
    rounds = list(zip(*waits, strict=True))
    return [
        median(max(waited) - waited[rank] for waited in rounds)
        for rank in range(len(waits))
    ]


def _wait(device: torch.device) -> None:
    if device.type == 'cuda':
        torch.cuda.synchronize(device)


def _all_reduce_seconds(
    device: torch.device, group: Group, size: int, repeats: int
) -> float:
    tensor = torch.zeros(size // 4, device=device)
    timers = [CollectiveTimer(device) for _ in range(2 + repeats)]
    for timer in timers:
        with timer:
            dist.all_reduce(tensor, group=group.process_group)
    # Without the first two, which warm up.
    return median(timer.seconds() for timer in timers[2:])
