# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Verdicts on what goes into the layers: what must not be.

Pure functions; each takes the numbers and the layers in forward order.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from .finding import Finding
from .numbers import Numbers
from .wording import these_ranks


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
