# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""From an iteration's numbers to findings: one function per check.

To add a check, write a function with its name, level and meaning in the
decorator, at the place where its findings are to stand among those of its
level; then a row each in the tables of ``BNStatsMonitorHook`` and
docs/monitor.md, which tests compare with :data:`CHECKS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from ..recipe import group_ranks, nearest_bn_sizes
from ..text import count, some, these_ranks
from .exchange import Numbers, is_foreign_sync, majority
from .record import LEVELS, Finding, Level
from .table import collective_seconds, forward_order, layer_state

# Of a sum over ranks and channels in float64; rounding is 2^-53 a rank.
SAME = 1e-9


class _Seen(NamedTuple):
    """What checks look at."""

    numbers: Numbers
    order: list[int]  # the layers in forward order
    max_collective_share: float
    max_running_var: float

    def names(self, layers: Sequence[int]) -> list[str]:
        return [self.numbers.names[i] for i in layers]


class _Found(NamedTuple):
    """What a check yields; its level, if it is not the check's usual one."""

    layers: Sequence[int]
    message: str
    ranks: Sequence[int] = ()
    level: Level | None = None


_Function = Callable[[_Seen], Iterator[_Found]]


class Check(NamedTuple):
    """A check of an iteration.

    Attributes:
        name (str): As findings have it.
        level (str): Of its findings, as a rule.
        what (str): What it finds.
        function (Callable): Yields what it finds.
        several_ranks (bool): Whether it takes more than one.
    """

    name: str
    level: Level
    what: str
    function: _Function
    several_ranks: bool


CHECKS: list[Check] = []


def _check(
    name: str, level: Level, what: str, several_ranks: bool = False
) -> Callable[[_Function], _Function]:
    def add(function: _Function) -> _Function:
        CHECKS.append(Check(name, level, what, function, several_ranks))
        return function

    return add


def judge(
    numbers: Numbers, max_collective_share: float, max_running_var: float
) -> list[Finding]:
    """Return all that is to be said of an iteration, errors first.

    A pure function: ranks that have the same numbers come to the same
    findings.

    Args:
        numbers (Numbers): What was gathered.
        max_collective_share (float): Share of an iteration that BatchNorm's
            collectives may take.
        max_running_var (float): What a running variance may grow to.
    """
    order = forward_order(numbers)
    seen = _Seen(numbers, order, max_collective_share, max_running_var)
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


def _about(
    seen: _Seen, layers: list[int], text: str, level: Level | None = None
) -> Iterator[_Found]:
    """Yield one finding of some layers, if there are any."""
    if layers:
        kinds = sorted({seen.numbers.kinds[i] for i in layers})
        text = text.format(
            layers=count(len(layers), 'layer'),
            names=some(seen.names(layers)),
            kinds=' and '.join(kinds),
        )
        yield _Found(layers, text, level=level)


@_check('non-finite', 'error', 'NaN or Inf, and where it came in first')
def _non_finite(seen: _Seen) -> Iterator[_Found]:
    calls = seen.numbers.layers['broken_call']
    buffers = np.greater(seen.numbers.layers['broken_buffers'], 0)
    broken = ((calls >= 0) | buffers).any(0)
    if not broken.any():
        return
    if (calls < 0).all():
        layer = next(i for i in seen.order if broken[i])
        ranks = np.flatnonzero(buffers[:, layer]).tolist()
        what = f'the running statistics of {seen.numbers.names[layer]}'
        remedy = 'Load a sound checkpoint.'
    else:
        place = calls[calls >= 0].min()
        layer = int((calls == place).any(0).argmax())
        ranks = np.flatnonzero(calls[:, layer] == place).tolist()
        what = (
            f'the input of {seen.numbers.names[layer]} (BatchNorm call '
            f'number {place + 1:g} of the iteration)'
        )
        remedy = (
            'Look at what computes this input and at the images of that '
            'rank; a learning rate that is too high, or half precision '
            'without loss scaling, ends so on all ranks.'
        )
    yield _Found(
        [layer],
        f'NaN or Inf, first in {what} on {these_ranks(ranks)}; '
        f'{int(broken.sum())} of {len(seen.order)} layers have it in the '
        f'end. {remedy}',
        ranks,
    )


@_check(
    'call-order',
    'error',
    'ranks call synchronised layers in different order, or leave some out',
    several_ranks=True,
)
def _call_order(seen: _Seen) -> Iterator[_Found]:
    numbers = seen.numbers
    hashes = numbers.ranks['order']
    _, odd = majority(hashes)
    if not odd:
        return
    # In a tie rank 0 is as good as any.
    usual = [r for r in range(numbers.world_size) if r not in odd]
    one = usual[0] if usual else 0
    other = next(r for r in odd if hashes[r] != hashes[one])
    layers, what = _first_difference(numbers, one, other)
    if not layers:
        layers, what = _called_again(seen, one, other)
    yield _Found(
        layers,
        f'The ranks call synchronised layers in different order: {what}. '
        'Their sums are mixed. Make all ranks call the same layers in '
        'the same order, with an empty batch if need be, or keep '
        'MegDetSyncBN out of parts that a rank may skip; '
        'SyncBNGroupHook(strict=True) stops at the call.',
        odd,
    )


def _first_difference(
    numbers: Numbers, one: int, other: int
) -> tuple[list[int], str]:
    """Return where two ranks' sequences of first calls part, if they do."""
    sequences = {}
    for rank in (one, other):
        rows = numbers.layers[rank]
        called = np.flatnonzero(rows['communicates']).tolist()
        sequences[rank] = sorted(called, key=lambda i: rows['first_call'][i])
    pairs = zip_longest(sequences[one], sequences[other])
    for place, pair in enumerate(pairs, 1):
        if pair[0] == pair[1]:
            continue
        texts = [
            f'{"nothing more" if layer is None else numbers.names[layer]} on '
            f'rank {rank}'
            for layer, rank in zip(pair, (one, other), strict=True)
        ]
        what = f'synchronised layer number {place} is {" and ".join(texts)}'
        for layer, rank in zip(pair, (other, one), strict=True):
            if layer is not None and layer not in sequences[rank]:
                what += f'; rank {rank} does not call {numbers.names[layer]}'
        return [layer for layer in pair if layer is not None], what
    return [], ''


def _called_again(seen: _Seen, one: int, other: int) -> tuple[list[int], str]:
    calls = seen.numbers.layers['calls']
    layers = [i for i in seen.order if calls[one, i] != calls[other, i]]
    return layers, 'layers are called again in another order' + ''.join(
        f'; {seen.numbers.names[i]} is called {calls[one, i]:g} times on rank '
        f'{one} and {calls[other, i]:g} times on rank {other}'
        for i in layers[:3]
    )


class _Case(NamedTuple):
    """One layer of a finding that may concern many."""

    reason: str
    ranks: tuple[int, ...]
    layer: int
    detail: str = ''


def _together(
    seen: _Seen, cases: list[_Case], remedy: str
) -> Iterator[_Found]:
    """Yield one finding for all layers that have the same problem."""
    by_problem: dict[tuple, list[_Case]] = {}
    for case in cases:
        by_problem.setdefault((case.reason, case.ranks), []).append(case)
    for (reason, ranks), found in by_problem.items():
        layers = [case.layer for case in found]
        names = seen.names(layers)
        text = f'{some(names)}: {reason}'
        if ranks:
            text += f' on {these_ranks(ranks)}'
        if found[0].detail:
            text += f' ({names[0]}: {found[0].detail})'
        yield _Found(layers, f'{text}. {remedy}', ranks)


@_check(
    'not-synchronised',
    'error',
    'ranks of a BN group use different batch statistics, or others than '
    "those of the group's batches; or a layer communicates with nobody where "
    'it should',
    several_ranks=True,
)
def _not_synchronised(seen: _Seen) -> Iterator[_Found]:
    cases: list[_Case] = []
    for layer in seen.order:
        if not seen.numbers.ours[layer]:
            continue
        state = layer_state(seen.numbers, layer)
        if state == 'alone':
            cases += _never_communicates(seen.numbers, layer)
        elif state == 'synced':
            for group in seen.numbers.bn_groups(layer):
                cases += _disagreement(seen.numbers, layer, group)
    yield from _together(
        seen,
        cases,
        'All ranks have to run the same model and code, and to call the same '
        'layers; call resolve_bn_groups, or use SyncBNGroupHook, on every '
        'rank.',
    )


def _never_communicates(numbers: Numbers, layer: int) -> Iterator[_Case]:
    bn_size = int(numbers.layers['bn_size'][0, layer]) or None
    images = numbers.images_per_gpu
    if images is None and bn_size is not None:
        return
    wanted = group_ranks(bn_size, images or 1, numbers.world_size)
    if wanted not in (None, 1):
        size = 'all images' if bn_size is None else f'{bn_size} images'
        yield _Case(
            f'statistics over each rank alone, not over {size} '
            f'({wanted} ranks)',
            (),
            layer,
        )


def _disagreement(
    numbers: Numbers, layer: int, group: Sequence[int]
) -> Iterator[_Case]:
    """Yield what the ranks of a BN group do not agree on, one thing."""
    rows = numbers.layers[group, layer]
    members = np.array(group)[rows['calls'] > 0]
    rows = rows[rows['calls'] > 0]
    alone = members[~(rows['communicates'] > 0)].tolist()
    if alone:
        reason = 'statistics over a rank alone'
        yield _Case(reason, tuple(alone), layer, 'without communication')
        return
    sketches = rows['local_sketch'], rows['group_sketch']
    if not len(rows) or not np.isfinite(sketches).all():
        return
    odd, by = _odd_ones(rows, 'group')
    if odd:
        yield _Case(
            'normalised by different batch statistics',
            tuple(members[odd].tolist()),
            layer,
            f'by about {by:.2g} in mean and mean square',
        )
        return
    wrong = _not_of_this_batch(rows)
    if wrong:
        ranks = tuple(group) if len(group) < numbers.world_size else ()
        reason = "normalised by statistics that are not the group's"
        yield _Case(reason, ranks, layer, wrong)


def _odd_ones(rows: np.ndarray, what: str) -> tuple[list[int], float]:
    """Return which of some ranks differ from most, and by how much at most."""
    usual, odd = majority(rows[f'{what}_hash'])
    if not odd:
        return [], 0.0
    sketches = rows[f'{what}_sketch']
    reference = sketches[rows[f'{what}_hash'] == usual][0]
    return odd, float(np.sqrt(np.square(sketches - reference).mean(1)).max())


def _not_of_this_batch(rows: np.ndarray) -> str | None:
    """Return how a group's statistics differ from those of its batches."""
    held, used = rows['count'].sum(), rows['group_count'][0]
    if held != used:
        return f'over {used:g} positions, and the ranks have {held:g}'
    if not held:
        return None
    expected = rows['count'] @ rows['local_sketch'] / held
    by = np.abs(rows['group_sketch'][0] - expected).max()
    if by <= SAME * rows['group_size'][0]:
        return None
    return f'by about {by:.2g} in mean and mean square'


@_check(
    'buffers-disagree',
    'error',
    'running statistics differ within a group',
    several_ranks=True,
)
def _buffers_disagree(seen: _Seen) -> Iterator[_Found]:
    numbers, cases = seen.numbers, []
    for layer in seen.order:
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
                        layer,
                        f'by about {by:.2g}',
                    )
                )
    yield from _together(
        seen,
        cases,
        'Something other than training has changed them on some ranks, or '
        'the ranks loaded different checkpoints: load one on all, and do '
        'without hooks that write buffers.',
    )


@_check(
    'same-data',
    'error',
    'all ranks see the same images (warning: some of them do)',
    several_ranks=True,
)
def _same_data(seen: _Seen) -> Iterator[_Found]:
    if not seen.order:
        return
    first = seen.order[0]
    rows = seen.numbers.layers[:, first]
    # What is constant is the same without being the same images.
    ranks = np.flatnonzero((rows['count'] > 0) & (rows['spreads'] > 0))
    hashes = Counter(rows['local_hash'][ranks])
    alike = [r for r in ranks.tolist() if hashes[rows['local_hash'][r]] > 1]
    if not alike:
        return
    every = len(hashes) == 1
    yield _Found(
        [first],
        f'{"All ranks see" if every else "Some ranks see"} the same '
        f'images: the batches of {these_ranks(alike)} have bit for bit '
        f'the same statistics in {seen.numbers.names[first]}, so more ranks '
        'bring nothing new. Look at the sampler: it has to deal '
        'different images to each rank (DefaultSampler does).',
        alike,
        'error' if every else 'warning',
    )


@_check(
    'bn-size',
    'warning',
    'groups that do not hold ``bn_size`` images',
    several_ranks=True,
)
def _bn_size(seen: _Seen) -> Iterator[_Found]:
    numbers, images = seen.numbers, seen.numbers.images_per_gpu
    unfit: dict[tuple[int, int], list[int]] = {}
    for i in seen.order:
        row = numbers.layers[0, i]
        size, ranks = int(row['bn_size']), int(row['ranks'])
        if not numbers.ours[i] or (size and images is None):
            continue
        if size:
            fits = ranks * (images or 0) == size
        else:
            fits = ranks == numbers.world_size
        if not fits:
            unfit.setdefault((size, ranks), []).append(i)
    for (size, ranks), layers in unfit.items():
        held = (
            f'statistics are over {ranks} rank(s)'
            if ranks
            else 'the number of ranks is not resolved'
        )
        text = (
            f'bn_size={size or None} is asked for in '
            f'{count(len(layers), "layer")} and, with {images} images per '
            f'GPU, {held}: {some(seen.names(layers))}.'
        )
        world = numbers.world_size
        if size and images and group_ranks(size, images, world) is None:
            nearest = nearest_bn_sizes(size, images, world)
            text += (
                f' {size} does not divide here; the nearest BN sizes are '
                f'{" and ".join(map(str, nearest))}.'
            )
        else:
            text += ' Use SyncBNGroupHook, or call resolve_bn_groups again.'
        yield _Found(layers, text)


@_check(
    'collective-time',
    'warning',
    "BatchNorm's collectives take more than ``max_collective_share``; the "
    'slow rank is the one that waits least',
    several_ranks=True,
)
def _collective_time(seen: _Seen) -> Iterator[_Found]:
    limit = seen.max_collective_share
    seconds = collective_seconds(seen.numbers)
    shares = seconds / seen.numbers.ranks['seconds']
    if shares.max() <= limit:
        return
    least = int(seconds.argmin())
    waits = np.median(np.delete(seconds, least))
    slow = waits > 2 * seconds[least]
    if slow:
        cause = (
            f'Rank {least} waits least, {seconds[least] * 1e3:.0f} ms; the '
            f'others wait {waits * 1e3:.0f} ms, for it: look at its machine '
            'and at its images.'
        )
    else:
        cause = (
            'No rank is much slower than the others, so it is the '
            'communication itself: use smaller BN groups within a node '
            '(bn_size), or more images per GPU.'
        )
    yield _Found(
        [],
        f"BatchNorm's collectives take {shares.max():.0%} of the iteration "
        f'on rank {int(shares.argmax())} (the limit is {limit:.0%}). {cause}',
        [least] if slow else [],
    )


@_check(
    'eval-mode',
    'warning',
    'layers in eval mode (``norm_eval``, ``frozen_stages``); info for plain '
    'ones',
)
def _eval_mode(seen: _Seen) -> Iterator[_Found]:
    rows, ours = seen.numbers.layers['training'], seen.numbers.ours
    found = [i for i in seen.order if not rows[:, i].all()]
    # Plain layers in eval mode are how detectors are usually fine-tuned.
    levels: list[tuple[bool, Level]] = [(True, 'warning'), (False, 'info')]
    for own, level in levels:
        yield from _about(
            seen,
            [i for i in found if ours[i] == own],
            '{layers} in eval mode while the model trains: no '
            'synchronisation, running statistics stay as they are: {names}. '
            'Set norm_eval=False and frozen_stages=-1 in the backbone, unless '
            'they are frozen on purpose.',
            level,
        )


@_check('frozen-affine', 'info', 'weight and bias are not trained')
def _frozen_affine(seen: _Seen) -> Iterator[_Found]:
    rows = seen.numbers.layers[0]
    frozen = (rows['training'] > 0) & (rows['trained'] == 0)
    yield from _about(
        seen,
        [i for i in seen.order if frozen[i]],
        'weight and bias of {layers} are not trained (requires_grad=False); '
        'the statistics are: {names}.',
    )


def _others_in_training(seen: _Seen, synchronise: bool) -> list[int]:
    """Return the layers that are no MegDetSyncBN, of one sort."""
    numbers = seen.numbers
    return [
        i
        for i in seen.order
        if not numbers.ours[i]
        and numbers.layers['training'][0, i]
        and is_foreign_sync(numbers.kinds[i]) == synchronise
    ]


@_check('foreign-sync-bn', 'info', "another library's synchronised BatchNorm")
def _foreign_sync_bn(seen: _Seen) -> Iterator[_Found]:
    yield from _about(
        seen,
        _others_in_training(seen, synchronise=True),
        '{layers} of {kinds} synchronise in their own way: only their buffers '
        'and inputs are looked at: {names}.',
    )


@_check(
    'plain-batch-norm',
    'warning',
    'layers that each rank keeps to itself; info in one process',
)
def _plain_batch_norm(seen: _Seen) -> Iterator[_Found]:
    text = (
        '{layers} of {kinds}: each rank normalises by its own batch and keeps '
        'running statistics of its own: {names}.'
    )
    several = seen.numbers.world_size > 1
    if several:
        text += (
            " Use norm_cfg=dict(type='MegDetSyncBN'), or "
            "model_wrapper_cfg=dict(type='MegDetDistributedDataParallel',"
            ' convert_bn=[...]) with the parts that all ranks call.'
        )
    layers = _others_in_training(seen, synchronise=False)
    yield from _about(seen, layers, text, 'warning' if several else 'info')


@_check('dead-channels', 'warning', 'channels that are constant on all ranks')
def _dead_channels(seen: _Seen) -> Iterator[_Found]:
    layers, texts = [], []
    for i in seen.order:
        rows = seen.numbers.layers[:, i]
        rows = rows[rows['group_count'] > 1]
        if not len(rows) or not rows['training'].all():
            continue
        fewest = rows[rows['dead'].argmin()]
        if fewest['dead']:
            layers.append(i)
            texts.append(
                f'{seen.numbers.names[i]}: {fewest["dead"]:g} of them, the '
                f'first is channel {fewest["first_dead"]:g}'
            )
    if layers:
        yield _Found(
            layers,
            'Channels are constant over the whole batch, so they carry '
            f'nothing and get no gradient ({some(texts)}). Usually a weight '
            'that is zero, a ReLU before that never opens, or an input that '
            'does not vary.',
        )


@_check('running-var', 'warning', '``running_var`` above ``max_running_var``')
def _running_var(seen: _Seen) -> Iterator[_Found]:
    limit, by_rank = seen.max_running_var, seen.numbers.layers
    largest = by_rank['running_var_max'].max(0)
    layers = [i for i in seen.order if largest[i] > limit]
    if not layers:
        return
    worst = max(layers, key=lambda i: largest[i])
    rank = int(by_rank['running_var_max'][:, worst].argmax())
    yield _Found(
        layers,
        f'running_var is above {limit:g} in {count(len(layers), "layer")}: '
        f'{some(seen.names(layers))}; at most {largest[worst]:.3g}, '
        f'in {seen.numbers.names[worst]}. Activations explode: lower the '
        'learning rate, lengthen the warm-up, or clip gradients.',
        [] if seen.numbers.ours[worst] else [rank],
    )


@_check('not-called', 'info', 'layers that no rank calls')
def _not_called(seen: _Seen) -> Iterator[_Found]:
    yield from _about(
        seen,
        [i for i in seen.order if layer_state(seen.numbers, i) == 'uncalled'],
        '{layers} not called in this iteration: {names}.',
    )
