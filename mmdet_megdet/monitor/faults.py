# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Verdicts on synchronisation: what must not be.

Pure functions; each takes the numbers and the layers in forward order.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from ..recipe.bn_groups import group_ranks
from .finding import Finding
from .numbers import Numbers, majority
from .table import layer_state
from .wording import some, these_ranks

# Of a sum over ranks and channels in float64; rounding is 2^-53 a rank.
SAME = 1e-9


class _Case(NamedTuple):
    """One layer of a finding that may concern many."""

    reason: str
    ranks: tuple[int, ...]
    layer: str
    detail: str


def call_order(numbers: Numbers, order: list[int]) -> list[Finding]:
    """All ranks call the same synchronised layers in the same order."""
    _, odd = majority(numbers.ranks['order'])
    if not odd:
        return []
    usual = [r for r in range(numbers.world_size) if r not in odd]
    # In a tie rank 0 is as good as any.
    one = usual[0] if usual else 0
    other = next(
        r
        for r in odd
        if numbers.ranks['order'][r] != numbers.ranks['order'][one]
    )
    a, b = (_sequence(numbers, rank) for rank in (one, other))
    place, first, second = next(
        (
            (place, x, y)
            for place, (x, y) in enumerate(zip_longest(a, b), 1)
            if x != y
        ),
        (0, None, None),
    )
    named = [layer for layer in (first, second) if layer is not None]
    if named:
        texts = [
            f'{"nothing more" if layer is None else numbers.names[layer]} on '
            f'rank {rank}'
            for layer, rank in ((first, one), (second, other))
        ]
        what = f'synchronised layer number {place} is {" and ".join(texts)}'
        for layer, rank, called in ((first, other, b), (second, one, a)):
            if layer is not None and layer not in called:
                what += f'; rank {rank} does not call {numbers.names[layer]}'
    else:
        calls = numbers.layers['calls'][[one, other]]
        named = [i for i in order if calls[0, i] != calls[1, i]]
        what = 'layers are called again in another order' + ''.join(
            f'; {numbers.names[i]} is called {calls[0, i]:g} times on rank '
            f'{one} and {calls[1, i]:g} times on rank {other}'
            for i in named[:3]
        )
    return [
        Finding(
            'call-order',
            'error',
            [numbers.names[i] for i in named],
            odd,
            f'The ranks call synchronised layers in different order: {what}. '
            'Their sums are mixed. Make all ranks call the same layers in '
            'the same order, with an empty batch if need be, or keep '
            'MegDetSyncBN out of parts that a rank may skip; '
            'SyncBNGroupHook(strict=True) stops at the call.',
        )
    ]


def not_synchronised(numbers: Numbers, order: list[int]) -> list[Finding]:
    """The ranks of a BN group normalise by the statistics of all of them."""
    cases = []
    for layer in order:
        if not numbers.ours[layer]:
            continue
        state = layer_state(numbers, layer)
        if state == 'alone':
            cases += _never_communicates(numbers, layer)
        elif state == 'synced':
            cases += _agreement(numbers, layer)
    return _findings(
        'not-synchronised',
        cases,
        'All ranks have to run the same model and code, and to call the same '
        'layers; call resolve_bn_groups, or use SyncBNGroupHook, on every '
        'rank.',
    )


def buffers_disagree(numbers: Numbers, order: list[int]) -> list[Finding]:
    """The ranks of a BN group have the same running statistics."""
    cases = []
    for layer in order:
        rows = numbers.layers[:, layer]
        size = majority(rows['ranks'])[0]
        if size < 2 or rows['broken_buffers'].any():
            continue
        # The members of another layer's own process group are not known.
        if not numbers.ours[layer] and size != numbers.world_size:
            continue
        for group in numbers.bn_groups(layer):
            odd, by = _odd_ones(rows[group], 'buffer')
            if odd:
                cases.append(
                    _Case(
                        'running_mean and running_var differ',
                        tuple(group[i] for i in odd),
                        numbers.names[layer],
                        f'by about {by:.2g}',
                    )
                )
    return _findings(
        'buffers-disagree',
        cases,
        'Something other than training has changed them on some ranks, or '
        'the ranks loaded different checkpoints: load one on all, and do '
        'without hooks that write buffers.',
    )


def _sequence(numbers: Numbers, rank: int) -> list[int]:
    """The synchronised layers in the order of a rank's first calls."""
    rows = numbers.layers[rank]
    called = np.flatnonzero(rows['communicates'])
    return sorted(called.tolist(), key=lambda i: rows['first_call'][i])


def _never_communicates(numbers: Numbers, layer: int) -> list[_Case]:
    rows = numbers.layers[:, layer]
    bn_size = int(rows['bn_size'][0]) or None
    images = numbers.images_per_gpu
    if images is None and bn_size is not None:
        return []
    wanted = group_ranks(bn_size, images or 1, numbers.world_size)
    if wanted in (None, 1):
        return []
    size = 'all images' if bn_size is None else f'{bn_size} images'
    return [
        _Case(
            f'statistics over each rank alone, not over {size} '
            f'({wanted} ranks)',
            (),
            numbers.names[layer],
            '',
        )
    ]


def _agreement(numbers: Numbers, layer: int) -> list[_Case]:
    name, cases = numbers.names[layer], []
    for group in numbers.bn_groups(layer):
        rows = numbers.layers[group, layer]
        called = rows[rows['calls'] > 0]
        alone = np.flatnonzero(
            (rows['calls'] > 0) & ~(rows['communicates'] > 0)
        )
        if len(alone):
            ranks = tuple(group[i] for i in alone)
            reason = 'statistics over a rank alone'
            cases.append(_Case(reason, ranks, name, 'without communication'))
            continue
        sketches = called['local_sketch'], called['group_sketch']
        if not len(called) or not all(np.isfinite(s).all() for s in sketches):
            continue
        odd, by = _odd_ones(called, 'group')
        if odd:
            members = [
                r
                for r, row in zip(group, rows, strict=True)
                if row['calls'] > 0
            ]
            cases.append(
                _Case(
                    'normalised by different batch statistics',
                    tuple(members[i] for i in odd),
                    name,
                    f'by about {by:.2g} in mean and mean square',
                )
            )
            continue
        wrong = _not_of_this_batch(called)
        if wrong:
            ranks = tuple(group) if len(group) < numbers.world_size else ()
            reason = "normalised by statistics that are not the group's"
            cases.append(_Case(reason, ranks, name, wrong))
    return cases


def _odd_ones(rows: np.ndarray, what: str) -> tuple[list[int], float]:
    """Which of some ranks differ from most, and by how much at most."""
    usual, odd = majority(rows[f'{what}_hash'])
    if not odd:
        return [], 0.0
    sketches = rows[f'{what}_sketch']
    reference = sketches[rows[f'{what}_hash'] == usual][0]
    return odd, float(np.sqrt(np.square(sketches - reference).mean(1)).max())


def _not_of_this_batch(rows: np.ndarray) -> str | None:
    """Whether a group's statistics are not those of its ranks' batches."""
    count, used = rows['count'].sum(), rows['group_count'][0]
    if count != used:
        return f'over {used:g} positions, and the ranks have {count:g}'
    if not count:
        return None
    expected = rows['count'] @ rows['local_sketch'] / count
    by = np.abs(rows['group_sketch'][0] - expected).max()
    if by <= SAME * rows['group_size'][0]:
        return None
    return f'by about {by:.2g} in mean and mean square'


def _findings(check: str, cases: list[_Case], remedy: str) -> list[Finding]:
    """One finding for all layers that have the same problem."""
    together: dict[tuple, list[_Case]] = {}
    for case in cases:
        together.setdefault((case.reason, case.ranks), []).append(case)
    findings = []
    for (reason, ranks), found in together.items():
        names = [case.layer for case in found]
        text = f'{some(names)}: {reason}'
        if ranks:
            text += f' on {these_ranks(ranks)}'
        if found[0].detail:
            text += f' ({names[0]}: {found[0].detail})'
        findings.append(
            Finding(check, 'error', names, list(ranks), f'{text}. {remedy}')
        )
    return findings
