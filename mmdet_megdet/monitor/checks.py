# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""From an iteration's numbers to findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from ..recipe import group_ranks, nearest_bn_sizes
from ..text import count, some, these_ranks
from .exchange import Numbers, is_foreign_sync, majority
from .record import Finding
from .table import collective_seconds, forward_order, layer_state

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


def eval_mode(numbers: Numbers, order: list[int]) -> list[Finding]:
    """Layers that normalise by running statistics and do not learn them."""
    findings = []
    found = [i for i in order if not numbers.layers['training'][:, i].all()]
    for ours, level in ((True, 'warning'), (False, 'info')):
        names = _names(numbers, [i for i in found if numbers.ours[i] == ours])
        if not names:
            continue
        remedy = (
            'Set norm_eval=False and frozen_stages=-1 in the backbone, unless '
            'they are frozen on purpose.'
        )
        findings.append(
            Finding(
                'eval-mode',
                level,
                names,
                [],
                f'{_layers(names)} in eval mode while the model trains: '
                'no synchronisation, running statistics stay as they are: '
                f'{some(names)}. {remedy}',
            )
        )
    return findings


def frozen_affine(numbers: Numbers, order: list[int]) -> list[Finding]:
    """Layers that take part, but whose weight and bias are not trained."""
    rows = numbers.layers[0]
    names = _names(
        numbers,
        [i for i in order if rows['training'][i] and not rows['trained'][i]],
    )
    if not names:
        return []
    text = (
        f'weight and bias of {_layers(names)} are not trained '
        f'(requires_grad=False); the statistics are: {some(names)}.'
    )
    return [Finding('frozen-affine', 'info', names, [], text)]


def plain_batch_norm(numbers: Numbers, order: list[int]) -> list[Finding]:
    """BatchNorm that each rank keeps to itself."""
    foreign = [
        i
        for i in order
        if not numbers.ours[i] and numbers.layers['training'][0, i]
    ]
    syncing = [i for i in foreign if is_foreign_sync(numbers.kinds[i])]
    plain = [i for i in foreign if i not in syncing]
    findings = []
    if syncing:
        names = _names(numbers, syncing)
        findings.append(
            Finding(
                'foreign-sync-bn',
                'info',
                names,
                [],
                f'{_layers(names)} of {_kinds(numbers, syncing)} '
                'synchronise in their own way: only their buffers and inputs '
                f'are looked at: {some(names)}.',
            )
        )
    if plain:
        names = _names(numbers, plain)
        several = numbers.world_size > 1
        text = (
            f'{_layers(names)} of {_kinds(numbers, plain)}: each rank '
            'normalises by its own batch and keeps running statistics of its '
            f'own: {some(names)}.'
        )
        if several:
            text += (
                " Use norm_cfg=dict(type='MegDetSyncBN'), or "
                "model_wrapper_cfg=dict(type='MegDetDistributedDataParallel',"
                ' convert_bn=[...]) with the parts that all ranks call.'
            )
        level = 'warning' if several else 'info'
        findings.append(Finding('plain-batch-norm', level, names, [], text))
    return findings


def dead_channels(numbers: Numbers, order: list[int]) -> list[Finding]:
    """Channels that are constant over the batch, on every rank."""
    found, texts = [], []
    for i in order:
        rows = numbers.layers[:, i]
        rows = rows[rows['group_count'] > 1]
        if not len(rows) or not rows['training'].all():
            continue
        fewest = rows[rows['dead'].argmin()]
        if fewest['dead']:
            found.append(i)
            texts.append(
                f'{numbers.names[i]}: {fewest["dead"]:g} of them, the first '
                f'is channel {fewest["first_dead"]:g}'
            )
    if not found:
        return []
    return [
        Finding(
            'dead-channels',
            'warning',
            _names(numbers, found),
            [],
            'Channels are constant over the whole batch, so they carry '
            f'nothing and get no gradient ({some(texts)}). Usually a weight '
            'that is zero, a ReLU before that never opens, or an input that '
            'does not vary.',
        )
    ]


def running_variance(
    numbers: Numbers, order: list[int], limit: float
) -> list[Finding]:
    """Running variances that have grown out of all proportion."""
    largest = numbers.layers['running_var_max'].max(0)
    found = [i for i in order if largest[i] > limit]
    if not found:
        return []
    worst = max(found, key=lambda i: largest[i])
    rank = int(numbers.layers['running_var_max'][:, worst].argmax())
    return [
        Finding(
            'running-var',
            'warning',
            _names(numbers, found),
            [] if numbers.ours[worst] else [rank],
            f'running_var is above {limit:g} in {_layers(found)}: '
            f'{some(_names(numbers, found))}; at most {largest[worst]:.3g}, '
            f'in {numbers.names[worst]}. Activations explode: lower the '
            'learning rate, lengthen the warm-up, or clip gradients.',
        )
    ]


def bn_size(numbers: Numbers, order: list[int]) -> list[Finding]:
    """Layers whose groups hold other than ``bn_size`` images."""
    images = numbers.images_per_gpu
    together: dict[tuple[int, int], list[int]] = {}
    for i in order:
        row = numbers.layers[0, i]
        size, ranks = int(row['bn_size']), int(row['ranks'])
        if not numbers.ours[i] or (size and images is None):
            continue
        fits = ranks * images == size if size else ranks == numbers.world_size
        if not fits:
            together.setdefault((size, ranks), []).append(i)
    findings = []
    for (size, ranks), found in together.items():
        names = _names(numbers, found)
        held = (
            f'statistics are over {ranks} rank(s)'
            if ranks
            else 'the number of ranks is not resolved'
        )
        text = (
            f'bn_size={size or None} is asked for in {_layers(names)} '
            f'and, with {images} images per GPU, {held}: {some(names)}.'
        )
        if size and group_ranks(size, images, numbers.world_size) is None:
            nearest = nearest_bn_sizes(size, images, numbers.world_size)
            text += (
                f' {size} does not divide here; the nearest BN sizes are '
                f'{" and ".join(map(str, nearest))}.'
            )
        else:
            text += ' Use SyncBNGroupHook, or call resolve_bn_groups again.'
        findings.append(Finding('bn-size', 'warning', names, [], text))
    return findings


def collective_time(
    numbers: Numbers, order: list[int], limit: float
) -> list[Finding]:
    """Time in the collectives, and the rank for which the others wait."""
    seconds, whole = collective_seconds(numbers), numbers.ranks['seconds']
    shares = seconds / whole
    if shares.max() <= limit:
        return []
    least = int(seconds.argmin())
    waits = np.median(np.delete(seconds, least))
    text = (
        f"BatchNorm's collectives take {shares.max():.0%} of the iteration "
        f'on rank {int(shares.argmax())} (the limit is {limit:.0%}). '
    )
    slow = waits > 2 * seconds[least]
    if slow:
        text += (
            f'Rank {least} waits least, {seconds[least] * 1e3:.0f} ms; the '
            f'others wait {waits * 1e3:.0f} ms, for it: look at its machine '
            'and at its images.'
        )
    else:
        text += (
            'No rank is much slower than the others, so it is the '
            'communication itself: use smaller BN groups within a node '
            '(bn_size), or more images per GPU.'
        )
    return [
        Finding(
            'collective-time', 'warning', [], [least] if slow else [], text
        )
    ]


def not_called(numbers: Numbers, order: list[int]) -> list[Finding]:
    """Layers that no rank calls."""
    names = _names(
        numbers, [i for i in order if layer_state(numbers, i) == 'uncalled']
    )
    if not names:
        return []
    text = f'{_layers(names)} not called in this iteration: {some(names)}.'
    return [Finding('not-called', 'info', names, [], text)]


def _names(numbers: Numbers, found: list[int]) -> list[str]:
    return [numbers.names[i] for i in found]


def _kinds(numbers: Numbers, found: list[int]) -> str:
    return ' and '.join(sorted({numbers.kinds[i] for i in found}))


def same_data(numbers: Numbers, order: list[int]) -> list[Finding]:
    """No two ranks see the same images."""
    if not order:
        return []
    first = order[0]
    rows = numbers.layers[:, first]
    seen = np.flatnonzero((rows['count'] > 0) & (rows['spreads'] > 0))
    hashes = Counter(rows['local_hash'][seen])
    if not hashes or max(hashes.values()) < 2:
        return []
    alike = [r for r in seen.tolist() if hashes[rows['local_hash'][r]] > 1]
    every = len(seen) > 1 and len(hashes) == 1
    return [
        Finding(
            'same-data',
            'error' if every else 'warning',
            [numbers.names[first]],
            alike,
            f'{"All ranks see" if every else "Some ranks see"} the same '
            f'images: the batches of {these_ranks(alike)} have bit for bit '
            f'the same statistics in {numbers.names[first]}, so more ranks '
            'bring nothing new. Look at the sampler: it has to deal '
            'different images to each rank (DefaultSampler does).',
        )
    ]


def non_finite(numbers: Numbers, order: list[int]) -> list[Finding]:
    """NaN or Inf, and where it appears first."""
    calls = numbers.layers['broken_call']
    broken = (calls >= 0).any(0) | (numbers.layers['broken_buffers'] > 0).any(
        0
    )
    if not broken.any():
        return []
    remedy = (
        'Look at what computes this input and at the images of that rank; a '
        'learning rate that is too high, or half precision without loss '
        'scaling, ends so on all ranks.'
    )
    if (calls < 0).all():
        layer = next(i for i in order if broken[i])
        found = numbers.layers['broken_buffers'][:, layer]
        ranks = np.flatnonzero(found).tolist()
        what = f'the running statistics of {numbers.names[layer]}'
        remedy = 'Load a sound checkpoint.'
    else:
        place = calls[calls >= 0].min()
        layer = int((calls == place).any(0).argmax())
        ranks = np.flatnonzero(calls[:, layer] == place).tolist()
        what = (
            f'the input of {numbers.names[layer]} (BatchNorm call number '
            f'{place + 1:g} of the iteration)'
        )
    return [
        Finding(
            'non-finite',
            'error',
            [numbers.names[layer]],
            ranks,
            f'NaN or Inf, first in {what} on {these_ranks(ranks)}; '
            f'{int(broken.sum())} of {len(order)} layers have it in the end. '
            f'{remedy}',
        )
    ]


def _layers(names: Sequence[str]) -> str:
    return count(len(names), 'layer')


def judge(
    numbers: Numbers, max_collective_share: float, max_running_var: float
) -> list[Finding]:
    """All that is to be said of an iteration, errors first.

    A pure function: ranks that have the same numbers come to the same
    findings.

    Args:
        numbers (Numbers): What was gathered.
        max_collective_share (float): Share of an iteration that BatchNorm's
            collectives may take.
        max_running_var (float): What a running variance may grow to.
    """
    order = forward_order(numbers)
    if numbers.world_size == 1:
        between = []
    else:
        between = [
            *call_order(numbers, order),
            *not_synchronised(numbers, order),
            *buffers_disagree(numbers, order),
            *same_data(numbers, order),
            *bn_size(numbers, order),
            *collective_time(numbers, order, max_collective_share),
        ]
    found = [
        *non_finite(numbers, order),
        *between,
        *eval_mode(numbers, order),
        *frozen_affine(numbers, order),
        *plain_batch_norm(numbers, order),
        *dead_channels(numbers, order),
        *running_variance(numbers, order, max_running_var),
        *not_called(numbers, order),
    ]
    levels = ('error', 'warning', 'info')
    return sorted(found, key=lambda finding: levels.index(finding.level))
