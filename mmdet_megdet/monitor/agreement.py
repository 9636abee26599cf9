# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Checks that compare ranks; each needs several of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest

import numpy as np

from ..text import count
from .exchange import Numbers, majority, varies
from .iteration import Problem, Seen
from .table import layer_state

# Of a sum over ranks and channels in float64; rounding is 2^-53 a rank.
SAME = 1e-9


def call_order(seen: Seen) -> Iterator[Problem]:
    """Ranks call synchronised layers in different order, or leave some out."""
    numbers = seen.numbers
    hashes = numbers.ranks['order']
    _, odd = majority(hashes)
    if not odd:
        return
    # In a tie rank 0 is as good as any.
    one = next((r for r in range(numbers.world_size) if r not in odd), 0)
    other = next(r for r in odd if hashes[r] != hashes[one])
    layers, what = _first_difference(numbers, one, other)
    what = what.replace('{', '{{').replace('}', '}}')  # of layers' names
    yield Problem(
        layers,
        f'The ranks call synchronised layers in different order: {what}. '
        'Make all call the same ones, with an empty batch if need be, or keep '
        'MegDetSyncBN out of parts that a rank may skip; '
        'SyncBNGroupHook(strict=True) stops at the call.',
        odd,
    )


def _first_difference(
    numbers: Numbers, one: int, other: int
) -> tuple[list[int], str]:
    """Return where two ranks' sequences of first calls part."""
    sequences = []
    for rows in numbers.layers[[one, other]]:
        called = np.flatnonzero(rows['communicates'])
        order = rows['first_call'][called].argsort()
        sequences.append(called[order].tolist())
    for place, pair in enumerate(zip_longest(*sequences), 1):
        if pair[0] != pair[1]:
            first, second = (
                'nothing more' if layer is None else numbers.names[layer]
                for layer in pair
            )
            return [layer for layer in pair if layer is not None], (
                f'synchronised layer number {place} is {first} on rank {one} '
                f'and {second} on rank {other}'
            )
    return [], 'some are called again, in other numbers or in another order'


def not_synchronised(seen: Seen) -> Iterator[Problem]:
    """Ranks of a group use different statistics, or not those of its batch."""
    for layer in seen.layers(ours=True, training=True):
        if layer_state(seen.numbers, layer) == 'synced':
            for group in seen.numbers.bn_groups(layer):
                yield from _disagreement(seen.numbers, layer, group)


def _disagreement(
    numbers: Numbers, layer: int, group: Sequence[int]
) -> Iterator[Problem]:
    rows = numbers.layers[group, layer]
    members = np.array(group)[rows['calls'] > 0]
    rows = rows[rows['calls'] > 0]
    sketches = rows['local_sketch'], rows['group_sketch']
    if not len(rows) or not np.isfinite(sketches).all():
        return
    odd, by = _odd_ones(rows, 'group')
    held = rows['count'].sum()
    what = ''
    if odd:
        what, group = 'batch statistics differ by', members[odd].tolist()
    elif held:
        expected = rows['count'] @ rows['local_sketch'] / held
        by = np.abs(rows['group_sketch'][0] - expected).max()
        if by > SAME * rows['group_size'][0]:
            what = "statistics are not the group's, by"
    if what:
        yield Problem(
            [layer],
            f'{{layers}}: {what} about {{number:.2g}} on {{ranks}}. Run the '
            'same model and code on all ranks.',
            group,
            by,
        )


def _odd_ones(rows: np.ndarray, what: str) -> tuple[list[int], float]:
    """Return which of some ranks differ from most, and by how much at most."""
    usual, odd = majority(rows[f'{what}_hash'])
    if not odd:
        return [], 0.0
    sketches = rows[f'{what}_sketch']
    reference = sketches[rows[f'{what}_hash'] == usual][0]
    return odd, float(np.sqrt(np.square(sketches - reference).mean(1)).max())


def buffers_disagree(seen: Seen) -> Iterator[Problem]:
    """Running statistics differ within a group."""
    text = (
        '{layers}: running_mean and running_var differ by about {number:.2g} '
        'on {ranks}. Load one checkpoint on all; no hook may write buffers.'
    )
    for layer in seen.order:
        rows = seen.numbers.layers[:, layer]
        grouped = seen.numbers.ours[layer] and majority(rows['ranks'])[0] > 1
        if not grouped or rows['broken_buffers'].any():
            continue
        for group in seen.numbers.bn_groups(layer):
            odd, by = _odd_ones(rows[group], 'buffer')
            if odd:
                yield Problem([layer], text, [group[i] for i in odd], by)


def same_data(seen: Seen) -> Iterator[Problem]:
    """All ranks see the same images; a warning, if some of them do."""
    if not seen.order:
        return
    first = seen.order[0]
    rows = seen.numbers.layers[:, first]
    # What is constant is the same without being the same images.
    known = (rows['count'] > 0) & varies(rows['mean'], rows['var']).any(1)
    ranks = np.flatnonzero(known)
    hashes = Counter(rows['local_hash'][ranks])
    alike = [r for r in ranks.tolist() if hashes[rows['local_hash'][r]] > 1]
    if alike:
        every = len(hashes) == 1
        yield Problem(
            [first],
            f'{"All" if every else "Some"} ranks see the same images: the '
            'batches of {ranks} have bit for bit the same statistics in '
            '{layers}. Look at the sampler: it has to deal different images '
            'to each rank (DefaultSampler does).',
            alike,
            level='error' if every else 'warning',
        )


def bn_size(seen: Seen) -> Iterator[Problem]:
    """Statistics are over other than ``bn_size`` images."""
    numbers, images = seen.numbers, seen.numbers.images_per_gpu
    for layer in seen.layers(ours=True, training=True):
        state, row = layer_state(numbers, layer), numbers.layers[0, layer]
        size = int(row['bn_size']) or None
        if state == 'uncalled' or (size and not images):
            continue
        ranks = int(row['ranks']) if state == 'synced' else 1
        wanted = size / images if size and images else numbers.world_size
        if ranks != wanted:
            text = (
                f'{{layers}}: statistics over {count(ranks, "rank")}, where '
                f'bn_size={size} asks for {wanted:g}. Use SyncBNGroupHook, or '
                'resolve_bn_groups on every rank.'
            )
            yield Problem([layer], text)
