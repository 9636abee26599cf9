# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Do all ranks run the same thing?"""

from __future__ import annotations

import hashlib
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from mmdet_megdet.annotations import configured
from mmdet_megdet.faults.same_run import settings, versions

from .meeting import Meeting
from .report import Finding, failure, passed, some, warning

_PREFIXES = ('NCCL_', 'TORCH_NCCL_', 'GLOO_')


def hardware() -> dict[str, str]:
    """The device's kind."""
    if not torch.cuda.is_available():
        return {'device': f'CPU, {platform.machine()}'}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    memory = f'{properties.total_memory / 2**30:.0f} GiB'
    return {'device': f'{properties.name}, {memory}'}


def variables() -> dict[str, str]:
    """The environment variables that change how ranks communicate."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_PREFIXES)
    }


def annotation_files(config: Any) -> dict[str, str]:
    """The annotation files that a training reads, each by its content."""
    uses, evaluations, _ = configured(config, ('train', 'val'))
    paths = dict.fromkeys(x.path for x in [*uses, *evaluations])
    return {path: _digest(Path(path)) for path in paths}


def _digest(path: Path) -> str:
    if not path.is_file():
        return 'not there'
    digest = hashlib.blake2b(digest_size=6)
    with path.open('rb') as file:
        while part := file.read(1 << 22):
            digest.update(part)
    return f'{path.stat().st_size} bytes, digest {digest.hexdigest()}'


def check_same(meeting: Meeting, config: Any) -> Iterator[Finding]:
    """Compare all ranks; a collective.

    Args:
        meeting (Meeting): The ranks.
        config (Config, optional): This rank's config.
    """
    yield from _compare(
        meeting,
        'versions',
        versions(),
        failure,
        'Install the same on all machines (make setup, from the lock), and '
        'bring them to the same commit of this repository.',
    )
    if config is not None:
        own = settings(config.to_dict())
        text = repr(sorted(own.items()))
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        # The settings themselves only where they differ.
        differ = len(set(meeting.gather(digest))) > 1
        yield from _compare(
            meeting,
            'config',
            own if differ else {'digest': digest},
            failure,
            'Start all ranks with the same file, options and environment '
            'variables.',
        )
        yield from _compare(
            meeting,
            'annotation files',
            annotation_files(config),
            failure,
            'Copy the file to all machines, or put it where all of them '
            'read it.',
        )
    yield from _compare(
        meeting,
        'hardware',
        hardware(),
        warning,
        'The slowest device sets the pace of all.',
    )
    yield from _compare(
        meeting,
        'communication variables',
        variables(),
        warning,
        'Export the same on all machines, unless their networks differ.',
    )


def _compare(
    meeting: Meeting,
    check: str,
    facts: Mapping[str, str],
    kind: Callable,
    remedy: str,
) -> Iterator[Finding]:
    by_rank = meeting.gather(dict(facts))
    names = sorted({name for found in by_rank for name in found})
    differences = []
    for name in names:
        values = [found.get(name, 'not set') for found in by_rank]
        common = Counter(values).most_common(1)[0][0]
        for value in sorted({v for v in values if v != common}):
            ranks = [r for r, v in enumerate(values) if v == value]
            differences.append(
                f'{name} is {value} on {meeting.listed(ranks)} and {common} '
                f'on {"the others" if len(values) > 2 else "the other"}'
            )
    if differences:
        yield kind(check, some(differences, 6), remedy)
    elif names:
        shown = ', '.join(f'{n} {facts[n]}' for n in names)
        yield passed(check, f'the same on all ranks: {shown}')
    else:
        yield passed(check, 'none set')
