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

from ..text import some, these_ranks
from .agreement import (
    bn_size,
    buffers_disagree,
    call_order,
    not_synchronised,
    same_data,
)
from .exchange import Numbers, is_foreign_sync
from .iteration import Problem, Seen
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
    findings = []
    for check in CHECKS:
        if check.several_ranks and numbers.world_size == 1:
            continue
        alike: dict[tuple, list[Problem]] = {}
        for problem in check.function(seen):
            key = problem.text, tuple(problem.ranks)
            alike.setdefault(key, []).append(problem)
        for (text, ranks), problems in alike.items():
            layers = [numbers.names[i] for p in problems for i in p.layers]
            told = text.format(
                layers=some(layers),
                ranks=these_ranks(ranks),
                number=max(p.number for p in problems),
            )
            level = problems[0].level or check.level
            findings.append(
                Finding(check.name, level, layers, list(ranks), told)
            )
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def _non_finite(seen: Seen) -> Iterator[Problem]:
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
    text = (
        f'NaN or Inf, first in {what} of {{layers}} on {{ranks}}; '
        f'{int(broken.sum())} of {len(seen.order)} layers have it in the end. '
        'On some ranks, look at their images; on all, at what computes it, '
        'the learning rate and the loss scale; running statistics alone come '
        'from a damaged checkpoint.'
    )
    yield Problem([layer], text, np.flatnonzero(at).tolist())


def _collective_time(seen: Seen) -> Iterator[Problem]:
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
    text = (
        f"BatchNorm's collectives take {shares.max():.0%} of the iteration "
        f'on rank {int(shares.argmax())} (the limit is {limit:.0%}). Rank '
        f'{least} waits least, {seconds[least] * 1e3:.0f} ms; the others '
        f'wait {waits * 1e3:.0f} ms, {cause}.'
    )
    yield Problem([], text, [least] if slow else [])


def _eval_mode(seen: Seen) -> Iterator[Problem]:
    """MegDetSyncBN in eval mode (``norm_eval``, ``frozen_stages``)."""
    text = (
        '{layers}: eval mode while the model trains, so nothing is '
        'synchronised. Set norm_eval=False and frozen_stages=-1 in the '
        'backbone, unless they are frozen on purpose.'
    )
    for layer in seen.layers(ours=True, training=False):
        yield Problem([layer], text)


def _plain_batch_norm(seen: Seen) -> Iterator[Problem]:
    """Layers that each rank keeps to itself, or that nobody can look into."""
    for layer in seen.layers(ours=False, training=True):
        kind = seen.numbers.kinds[layer]
        what = ', of which each rank normalises by its own batch'
        if is_foreign_sync(kind):
            what = ' synchronises in its own way, which is not checked'
        text = (
            f"{{layers}}: {kind}{what}. Use norm_cfg=dict(type='MegDetSyncBN')"
            ', or convert_bn=[...] of MegDetDistributedDataParallel with the '
            'parts that all ranks call.'
        )
        yield Problem([layer], text)


def _dead_channels(seen: Seen) -> Iterator[Problem]:
    """Channels that are constant on all ranks."""
    rows = seen.numbers.layers
    # Not of ranks that have nothing.
    known = (rows['group_count'] > 1) & (rows['training'] > 0)
    fewest = np.where(known, rows['dead'], np.inf).min(0)
    text = (
        '{layers}: up to {number:g} channels are constant over the whole '
        'batch and get no gradient: usually a weight that is zero, a ReLU '
        'before that never opens, or an input that does not vary.'
    )
    for layer in seen.order:
        if 0 < fewest[layer] < np.inf:
            yield Problem([layer], text, number=fewest[layer])


def _running_var(seen: Seen) -> Iterator[Problem]:
    """``running_var`` above ``max_running_var``."""
    largest = seen.numbers.layers['running_var_max'].max(0)
    text = (
        f'{{layers}}: running_var is above {seen.max_running_var:g}, at most '
        '{number:.3g}. Activations explode: lower the learning rate, lengthen '
        'the warm-up, or clip gradients.'
    )
    for layer in seen.order:
        if largest[layer] > seen.max_running_var:
            yield Problem([layer], text, number=largest[layer])


class Check(NamedTuple):
    """A check of an iteration: its name, and the level of its findings."""

    name: str
    level: Level
    function: Callable[[Seen], Iterable[Problem]]
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
