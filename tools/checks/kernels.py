# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Which kernels MegDetSyncBN will run, and whether they are right."""

from __future__ import annotations

from collections.abc import Iterator

from .meeting import Meeting
from .report import Finding, failure, passed, warning

CHECK = 'kernels'
_REMEDY = (
    'Training goes on with plain operations, as exact and slower. Where '
    'triton is missing: pip install the one that this torch asks for.'
)


def check_kernels() -> Iterator[Finding]:
    """Run all kernels on each GPU, at small sizes and at a ResNet-50's."""
    try:
        import torch

        from mmdet_megdet.sync_bn import kernels
    except Exception:
        return  # the package's own line says so
    gpus = torch.cuda.device_count()
    for place in range(gpus) if gpus else [None]:
        name = 'cpu' if place is None else f'cuda:{place}'
        try:
            yield _finding(name, torch.device(name), kernels)
        except (RuntimeError, ValueError) as error:
            yield failure(CHECK, str(error), 'Do what this says.')


def _finding(name: str, device, kernels) -> Finding:
    outcome = kernels.outcome(device)
    fault = kernels.fault(device)
    if fault is None and outcome == kernels.TRITON:
        fault = kernels.check.find_fault_at_real_sizes(device)
        outcome += ', small and of the sizes of a ResNet-50'
    if fault is None:
        return passed(CHECK, f'{name}: {outcome}')
    return warning(CHECK, f'{name}: Triton kernels: {fault}', _REMEDY)


def check_all_ranks(meeting: Meeting) -> Iterator[Finding]:
    """Which kernels each rank runs; a collective."""
    from mmdet_megdet.sync_bn import kernels

    by_rank = meeting.gather(kernels.outcome(meeting.device))
    for outcome in sorted(set(by_rank)):
        ranks = [r for r, found in enumerate(by_rank) if found == outcome]
        alike = len(ranks) == len(by_rank)
        where = 'all ranks' if alike else meeting.listed(ranks)
        finding = passed(CHECK, f'{where}: {outcome}')
        if kernels.fault(meeting.device) or not alike:
            finding = warning(CHECK, f'{where}: {outcome}', _REMEDY)
        yield finding
