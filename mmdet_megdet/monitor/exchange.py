# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The vectors of numbers that ranks exchange about an iteration."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
from mmengine.dist import all_gather
from torch import Tensor, nn

from ..sync_bn import MegDetSyncBN, world_size
from .probe import Probe, running_stats

# Channels of which a rank tells mean and variance: enough for a share that is
# an average over channels, and 128 ranks' moments of a ResNet-50 are 16 MB.
CHANNELS = 128
# Sums with random signs in a sketch of a vector.
SKETCH = 4
# Of the squared mean: a variance that is no more than rounding. Float64 sums
# leave about 2^-50 of it in a constant channel (sync_bn/moments.py), and a
# float32 number is known to 2^-24 of itself.
NO_VARIANCE = 2.0**-46

# All float64, since that is what is gathered. Whole numbers, and hashes of 48
# bits, are exact in it.
RANK = np.dtype([('seconds', 'f8'), ('collectives', 'f8'), ('order', 'f8')])
LAYER = np.dtype(
    [
        # The mode, and how the layer is set up.
        ('training', 'f8'),
        ('bn_size', 'f8'),  # 0: all ranks
        ('ranks', 'f8'),  # of a BN group; 0: not resolved
        # Of all calls.
        ('first_call', 'f8'),  # its place among the rank's; -1: none
        ('calls', 'f8'),
        ('communicates', 'f8'),
        ('broken_call', 'f8'),  # first with NaN or Inf; -1: none
        # Of the first call.
        ('count', 'f8'),
        # Of channels evenly spaced; 0 behind the last.
        ('mean', 'f8', (CHANNELS,)),
        ('var', 'f8', (CHANNELS,)),
        ('local_hash', 'f8'),
        ('local_sketch', 'f8', (SKETCH,)),
        ('group_count', 'f8'),
        ('group_hash', 'f8'),
        ('group_sketch', 'f8', (SKETCH,)),
        ('group_size', 'f8'),  # L1 norm of what the sketch is of
        ('mean_drift', 'f8'),
        ('dead', 'f8'),
        # Of the buffers, after the iteration.
        ('buffer_hash', 'f8'),
        ('buffer_sketch', 'f8', (SKETCH,)),
        ('broken_buffers', 'f8'),
        ('running_var_max', 'f8'),
    ]
)


class Numbers(NamedTuple):
    """What all ranks know of an iteration, the same on each.

    Layers are told by name, class and whether they are ``MegDetSyncBN``;
    images per GPU are None where that is not known. ``ranks`` is of dtype
    :data:`RANK`, ``(R, )``; ``layers`` of dtype :data:`LAYER`, ``(R, L)``.
    """

    names: list[str]
    kinds: list[str]
    ours: list[bool]
    images_per_gpu: int | None
    ranks: np.ndarray
    layers: np.ndarray

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def bn_groups(self, layer: int) -> list[range]:
        """Return the ranks of a layer's BN groups, by what most ranks say.

        All ranks in one group, where the layer has none.
        """
        ranks = int(majority(self.layers['ranks'][:, layer])[0])
        size = ranks if ranks > 1 else self.world_size
        return [
            range(first, min(first + size, self.world_size))
            for first in range(0, self.world_size, size)
        ]


def is_foreign_sync(kind: str) -> bool:
    """Return whether a class of that name is a library's SyncBatchNorm."""
    return 'SyncBatchNorm' in kind


def majority(values: np.ndarray) -> tuple[float, list[int]]:
    """Return the most frequent value, and the places that have another.

    All places, if there is a tie: nobody can tell then who is right.
    """
    found, counts = np.unique(values, return_counts=True)
    most = found[counts.argmax()]
    if len(found) > 1 and (counts == counts.max()).sum() > 1:
        return float(most), list(range(len(values)))
    return float(most), np.flatnonzero(values != most).tolist()


def varies(mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    """Return which channels vary by more than rounding, or are NaN."""
    return ~(var <= NO_VARIANCE * np.square(mean))


def gather(vector: np.ndarray) -> np.ndarray:
    """Return all ranks' vectors, ``(R, size)``: the one collective.

    On the default group: it comes between iterations, where no gradients
    travel. All ranks call it.
    """
    return torch.stack(all_gather(torch.from_numpy(vector))).numpy()


def decode(
    vectors: np.ndarray, probe: Probe, images_per_gpu: int | None
) -> Numbers:
    """Return the numbers in all ranks' vectors, ``(R, size)``."""
    parts = np.split(vectors, [RANK.itemsize // 8], axis=1)
    ranks, layers = map(np.ascontiguousarray, parts)
    return Numbers(
        probe.names,
        [type(layer).__name__ for layer in probe.layers],
        [isinstance(layer, MegDetSyncBN) for layer in probe.layers],
        images_per_gpu,
        ranks.view(RANK)[:, 0],
        layers.view(LAYER),
    )


def encode(probe: Probe) -> np.ndarray:
    """Return what a rank has to tell, after the probe was detached.

    In float64, of a size that the model alone determines.
    """
    rank, rows = np.zeros((), RANK), np.zeros(len(probe.layers), LAYER)
    rank['seconds'], rank['collectives'] = probe.seconds()
    rank['order'] = _hash([c.layer for c in probe.calls if c.communicates])
    places = range(len(probe.layers))
    finite, *arrays = _to_host(
        [
            [call.finite for call in probe.calls],
            *(probe.first.get(place, []) for place in places),
            *probe.before,
            *map(running_stats, probe.layers),
        ]
    )
    first, before, after = (
        arrays[i * len(places) : (i + 1) * len(places)] for i in range(3)
    )
    for place, layer in enumerate(probe.layers):
        row = rows[place]
        _describe(row, layer)
        _tell_calls(row, place, probe, finite)
        if first[place]:
            _tell_batch(row, layer, first[place], before[place])
        if after[place]:
            _tell_buffers(row, np.stack(after[place]))
    return np.concatenate([rank[None].view('f8'), rows.view('f8')])


def _to_host(lists: list[list[Tensor]]) -> list[list[np.ndarray]]:
    """Return the tensors as float64 arrays: one copy from the device."""
    flat = [t.detach().double().flatten() for some in lists for t in some]
    if not flat:
        return [[] for _ in lists]
    parts = torch.cat(flat).cpu().split([t.numel() for t in flat])
    arrays = iter([part.numpy() for part in parts])
    return [[next(arrays) for _ in some] for some in lists]


def _describe(row: np.void, layer: nn.Module) -> None:
    row['training'] = layer.training
    if isinstance(layer, MegDetSyncBN):
        every = world_size() if layer.bn_size is None else 0
        row['bn_size'] = layer.bn_size or 0
        row['ranks'] = layer.ranks_per_group or every
    else:
        foreign = is_foreign_sync(type(layer).__name__)
        row['ranks'] = world_size() if foreign else 1
    # What is not told later is not known.
    row['mean_drift'] = row['running_var_max'] = np.nan


def _tell_calls(
    row: np.void, layer: int, probe: Probe, finite: list[np.ndarray]
) -> None:
    calls = [i for i, call in enumerate(probe.calls) if call.layer == layer]
    row['calls'] = len(calls)
    row['first_call'] = next(iter(calls), -1)
    row['communicates'] = any(probe.calls[i].communicates for i in calls)
    row['broken_call'] = next((i for i in calls if not finite[i]), -1)


def _tell_batch(
    row: np.void,
    layer: nn.Module,
    first: list[np.ndarray],
    before: list[np.ndarray],
) -> None:
    count, mean, var, group_count, group_mean, group_var = first
    row['count'], row['group_count'] = count[0], group_count[0]
    taken = min(len(mean), CHANNELS)
    channels = np.linspace(0, len(mean) - 1, taken).astype(int)
    row['mean'][:taken], row['var'][:taken] = mean[channels], var[channels]
    row['local_hash'] = _hash(count, mean, var)
    row['group_hash'] = _hash(group_mean, group_var)
    row['local_sketch'] = _sketch(_about_zero(mean, var))
    about_zero = _about_zero(group_mean, group_var)
    row['group_sketch'] = _sketch(about_zero)
    row['group_size'] = np.abs(about_zero).sum()
    if group_count[0] > 1:
        row['dead'] = (~varies(group_mean, group_var)).sum()
    if before and group_count[0]:
        # How far it is from the running statistics that it met.
        running_mean, running_var = before
        with np.errstate(all='ignore'):
            shift = group_mean - running_mean
            drift = np.square(shift) / (running_var + layer.eps)
            row['mean_drift'] = np.sqrt(drift.mean())


def _tell_buffers(row: np.void, buffers: np.ndarray) -> None:
    row['buffer_hash'] = _hash(buffers)
    row['buffer_sketch'] = _sketch(buffers.reshape(-1))
    row['broken_buffers'] = (~np.isfinite(buffers)).any(0).sum()
    row['running_var_max'] = buffers[1].max()


def _about_zero(mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    # Mean and mean square: those of a group are averages of its ranks'.
    return np.concatenate([mean, var + np.square(mean)])


def _hash(*arrays: np.ndarray | list[int]) -> float:
    # 48 bits, which float64 holds exactly.
    digest = blake2b(digest_size=6)
    for array in arrays:
        # NaNs come with different bits.
        array = np.where(np.isnan(array), np.nan, array)
        digest.update(np.ascontiguousarray(array, 'f8').tobytes())
    return float(int.from_bytes(digest.digest(), 'little'))


def _sketch(vector: np.ndarray) -> np.ndarray:
    """Return some sums with fixed random signs.

    Linear, so that two ranks' vectors differ by about the rms of their
    sketches' differences: exactly, if they differ in one element.
    """
    return _signs(len(vector)) @ vector


@cache
def _signs(length: int) -> np.ndarray:
    return np.random.default_rng(0).choice([-1.0, 1.0], (SKETCH, length))
