# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Verdicts on what may not be meant so: warnings, and things to know.

Pure functions; each takes the numbers and the layers in forward order.
"""

from __future__ import annotations

import numpy as np

from ..recipe.bn_groups import group_ranks, nearest_bn_sizes
from .finding import Finding
from .numbers import Numbers, is_foreign_sync
from .table import collective_seconds, layer_state
from .wording import layers, some


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
                f'{layers(len(names))} in eval mode while the model trains: '
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
        f'weight and bias of {layers(len(names))} are not trained '
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
                f'{layers(len(names))} of {_kinds(numbers, syncing)} '
                'synchronise in their own way: only their buffers and inputs '
                f'are looked at: {some(names)}.',
            )
        )
    if plain:
        names = _names(numbers, plain)
        several = numbers.world_size > 1
        text = (
            f'{layers(len(names))} of {_kinds(numbers, plain)}: each rank '
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
            f'running_var is above {limit:g} in {layers(len(found))}: '
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
            f'bn_size={size or None} is asked for in {layers(len(names))} '
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
    text = f'{layers(len(names))} not called in this iteration: {some(names)}.'
    return [Finding('not-called', 'info', names, [], text)]


def _names(numbers: Numbers, found: list[int]) -> list[str]:
    return [numbers.names[i] for i in found]


def _kinds(numbers: Numbers, found: list[int]) -> str:
    return ' and '.join(sorted({numbers.kinds[i] for i in found}))
