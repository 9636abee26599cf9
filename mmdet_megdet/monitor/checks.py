# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""From an iteration's numbers to findings: one function per check.

To add a check, write a function and a row in :data:`CHECKS`, at the place
where its findings are to stand among those of its level; then a row in
docs/monitor.md, which a test compares with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ..text import these_ranks
from .agreement import (
    bn_size,
    buffers_disagree,
    call_order,
    not_synchronised,
    same_data,
)
from .exchange import Numbers, is_foreign_sync
from .iteration import Case, Found, Seen, together
from .record import LEVELS, Finding, Level
from .table import forward_order


def judge(
    numbers: Numbers, max_collective_share: float, max_running_var: float
) -> list[Finding]:
    """Return the findings of all checks on an iteration, errors first.

    A pure function: ranks that have the same numbers come to the same
    findings.
    """
    order = forward_order(numbers)
    seen = Seen(numbers, order, max_collective_share, max_running_var)
    findings = [
        Finding(
            check.name,
            found.level or check.level,
            seen.names(found.layers),
            list(found.ranks),
            found.message,
        )
        for check in CHECKS
        if numbers.world_size > 1 or not check.several_ranks
        for found in check.function(seen)
    ]
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def _non_finite(seen: Seen) -> Iterator[Found]:
    """NaN or Inf, and where it came in first."""
    calls = seen.numbers.layers['broken_call']
    buffers = np.greater(seen.numbers.layers['broken_buffers'], 0)
    broken = ((calls >= 0) | buffers).any(0)
    if not broken.any():
        return
    if (calls < 0).all():
        layer = next(i for i in seen.order if broken[i])
        at, what = buffers[:, layer], 'the running statistics'
    else:
        place = calls[calls >= 0].min()
        layer = int((calls == place).any(0).argmax())
        at, what = calls[:, layer] == place, 'the input'
    ranks = np.flatnonzero(at).tolist()
    yield Found(
        [layer],
        f'NaN or Inf, first in {what} of {seen.numbers.names[layer]} on '
        f'{these_ranks(ranks)}; {int(broken.sum())} of {len(seen.order)} '
        'layers have it in the end. On some ranks, look at their images; on '
        'all, at what computes it, the learning rate and the loss scale; '
        'running statistics alone come from a damaged checkpoint.',
        ranks,
    )


def _collective_time(seen: Seen) -> Iterator[Found]:
    """Collectives take long; the slow rank is the one that waits least."""
    limit = seen.max_collective_share
    seconds = seen.numbers.ranks['collectives']
    shares = seconds / seen.numbers.ranks['seconds']
    if shares.max() <= limit:
        return
    least = int(seconds.argmin())
    waits = np.median(np.delete(seconds, least))
    slow = waits > 2 * seconds[least]
    cause = 'for it: look at its machine and at its images'
    if not slow:
        cause = 'so it is the communication: use smaller BN groups (bn_size)'
    yield Found(
        [],
        f"BatchNorm's collectives take {shares.max():.0%} of the iteration "
        f'on rank {int(shares.argmax())} (the limit is {limit:.0%}). Rank '
        f'{least} waits least, {seconds[least] * 1e3:.0f} ms; the others '
        f'wait {waits * 1e3:.0f} ms, {cause}.',
        [least] if slow else [],
    )


def _eval_mode(seen: Seen) -> Iterator[Found]:
    """MegDetSyncBN in eval mode (``norm_eval``, ``frozen_stages``)."""
    text = 'eval mode while the model trains, so nothing is synchronised'
    yield from together(
        seen,
        [Case(i, text) for i in seen.layers(ours=True, training=False)],
        'Set norm_eval=False and frozen_stages=-1 in the backbone, unless '
        'they are frozen on purpose.',
    )


def _plain_batch_norm(seen: Seen) -> Iterator[Found]:
    """Layers that each rank keeps to itself, or that nobody can look into."""
    cases = []
    for layer in seen.layers(ours=False, training=True):
        kind = seen.numbers.kinds[layer]
        if is_foreign_sync(kind):
            text = f'{kind} synchronises in its own way, which is not checked'
        else:
            text = f'{kind}, of which each rank normalises by its own batch'
        cases.append(Case(layer, text))
    yield from together(
        seen,
        cases,
        "Use norm_cfg=dict(type='MegDetSyncBN'), or model_wrapper_cfg=dict("
        "type='MegDetDistributedDataParallel', convert_bn=[...]) with the "
        'parts that all ranks call.',
    )


def _dead_channels(seen: Seen) -> Iterator[Found]:
    """Channels that are constant on all ranks."""
    rows = seen.numbers.layers
    # Not of ranks that have nothing.
    known = (rows['group_count'] > 1) & (rows['training'] > 0)
    fewest = np.where(known, rows['dead'], np.inf).min(0)
    text = 'up to {:g} channels are constant over the whole batch'
    yield from together(
        seen,
        [
            Case(i, text, number=fewest[i])
            for i in seen.order
            if 0 < fewest[i] < np.inf
        ],
        'They carry nothing and get no gradient: usually a weight that is '
        'zero, a ReLU before that never opens, or an input that does not '
        'vary.',
    )


def _running_var(seen: Seen) -> Iterator[Found]:
    """``running_var`` above ``max_running_var``."""
    largest = seen.numbers.layers['running_var_max'].max(0)
    text = (
        f'running_var is above {seen.max_running_var:g}, at most ' + '{:.3g}'
    )
    yield from together(
        seen,
        [
            Case(i, text, number=largest[i])
            for i in seen.order
            if largest[i] > seen.max_running_var
        ],
        'Activations explode: lower the learning rate, lengthen the warm-up, '
        'or clip gradients.',
    )


class Check(NamedTuple):
    """A check of an iteration: its name, and the level of its findings."""

    name: str
    level: Level
    function: Callable[[Seen], Iterable[Found]]
    several_ranks: bool = False  # whether it takes more than one


CHECKS = (
    Check('non-finite', 'error', _non_finite),
    Check('call-order', 'error', call_order, True),
    Check('not-synchronised', 'error', not_synchronised, True),
    Check('buffers-disagree', 'error', buffers_disagree, True),
    Check('same-data', 'error', same_data, True),
    Check('bn-size', 'error', bn_size, True),
    Check('collective-time', 'warning', _collective_time, True),
    Check('eval-mode', 'warning', _eval_mode),
    Check('plain-batch-norm', 'warning', _plain_batch_norm, True),
    Check('dead-channels', 'warning', _dead_channels),
    Check('running-var', 'warning', _running_var),
)
