# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What ranks tell each other of an iteration: a vector each, of one size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..sync_bn import MegDetSyncBN, world_size
from .probe import Call, Probe, running_stats

# Channels of which a rank tells mean and variance: enough for a share that is
# an average over channels, and 128 ranks' moments of a ResNet-50 are 13 MB.
MAX_CHANNELS = 256
# Sums with random signs in a sketch of a vector.
SKETCH = 4
# Of the squared mean: a variance that is no more than rounding. Float64 sums
# leave about 2^-50 of it in a constant channel (sync_bn/moments.py), and a
# float32 number is known to 2^-24 of itself.
NO_VARIANCE = 2.0**-46

# All float64, since that is what is gathered. Whole numbers, and hashes of 48
# bits, are exact in it.
RANK = np.dtype([('seconds', 'f8'), ('order', 'f8')])
LAYER = np.dtype(
    [
        # Place of the first call among the rank's calls; -1: none.
        ('first_call', 'f8'),
        ('calls', 'f8'),
        # The mode, and how the layer is set up.
        ('training', 'f8'),
        ('trained', 'f8'),  # 0: frozen weights; 1: not, or has none
        ('bn_size', 'f8'),  # 0: all ranks
        ('ranks', 'f8'),  # of a BN group; 0: not resolved
        ('communicates', 'f8'),
        # Of the first call.
        ('count', 'f8'),
        ('group_count', 'f8'),
        ('spreads', 'f8'),  # whether any channel has a variance here
        ('mean_drift', 'f8'),
        ('var_drift', 'f8'),
        ('dead', 'f8'),
        ('first_dead', 'f8'),  # channel; -1: none
        ('local_sketch', 'f8', (SKETCH,)),
        ('group_sketch', 'f8', (SKETCH,)),
        ('group_size', 'f8'),  # L1 norm of what the sketch is of
        # Of all calls.
        ('local_hash', 'f8'),
        ('group_hash', 'f8'),
        ('broken_call', 'f8'),  # first with NaN or Inf; -1: none
        ('seconds', 'f8'),
        # Of the buffers, after the iteration.
        ('buffer_hash', 'f8'),
        ('buffer_sketch', 'f8', (SKETCH,)),
        ('broken_buffers', 'f8'),
        ('running_var_max', 'f8'),
    ]
)


class Numbers(NamedTuple):
    """What all ranks know of an iteration, the same on each.

    Attributes:
        names (list[str]): The layers' names.
        kinds (list[str]): Their classes' names.
        ours (list[bool]): Whether they are ``MegDetSyncBN``.
        images_per_gpu (int, optional): None where it is not known.
        ranks (np.ndarray): Of dtype :data:`RANK`, shape ``(R, )``.
        layers (np.ndarray): Of dtype :data:`LAYER`, shape ``(R, L)``.
        moments (list[np.ndarray]): For each layer, the local means and
            biased variances of its first call, of some channels: ``(R, 2,
            S)``.
    """

    names: list[str]
    kinds: list[str]
    ours: list[bool]
    images_per_gpu: int | None
    ranks: np.ndarray
    layers: np.ndarray
    moments: list[np.ndarray]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def bn_groups(self, layer: int) -> list[range]:
        """Return the ranks of each BN group of a layer.

        By what most ranks say of it; all ranks in one group, where the layer
        has none.
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


def gather(vector: np.ndarray, device: torch.device) -> np.ndarray:
    """Return all ranks' vectors, ``(R, size)``: the one collective.

    On the default group: it comes between iterations, where no gradients
    travel. All ranks call it.
    """
    if world_size() == 1:
        return vector[None]
    own = torch.from_numpy(vector).to(device)
    every = [torch.empty_like(own) for _ in range(world_size())]
    dist.all_gather(every, own)
    return torch.stack(every).cpu().numpy()


def decode(
    vectors: np.ndarray, probe: Probe, images_per_gpu: int | None
) -> Numbers:
    """Return the numbers in what was gathered.

    Args:
        vectors (np.ndarray): Of all ranks, by :func:`encode`: ``(R, size)``.
        probe (Probe): Whose layers they are.
        images_per_gpu (int, optional): None where it is not known.
    """
    lengths = [RANK.itemsize // 8, len(probe.layers) * LAYER.itemsize // 8]
    lengths += [
        len(sampled_channels(layer.num_features)) for layer in probe.layers
    ]
    parts = np.split(vectors, np.cumsum(lengths)[:-1], axis=1)
    ranks, layers, *moments = map(np.ascontiguousarray, parts)
    return Numbers(
        probe.names,
        [type(layer).__name__ for layer in probe.layers],
        [isinstance(layer, MegDetSyncBN) for layer in probe.layers],
        images_per_gpu,
        ranks.view(RANK)[:, 0],
        layers.view(LAYER),
        [
            part.view('f4').reshape(len(vectors), 2, -1).astype('f8')
            for part in moments
        ],
    )


@cache
def sampled_channels(number: int) -> np.ndarray:
    """Return the channels whose moments are told, evenly spaced."""
    taken = min(number, MAX_CHANNELS)
    return np.linspace(0, number - 1, taken).round().astype(int)


@dataclass(frozen=True)
class _HostCall:
    """A :class:`~.probe.Call` as numpy arrays; group's own or the rank's."""

    count: int
    mean: np.ndarray
    var: np.ndarray
    group_count: int
    group_mean: np.ndarray
    group_var: np.ndarray
    second: np.ndarray


def encode(probe: Probe) -> np.ndarray:
    """Return what a rank has to tell, after the probe was detached.

    Returns:
        np.ndarray: float64, of a size that the model alone determines. Not
        meant for arithmetic: the moments in it are pairs of float32.
    """
    seconds, by_layer = probe.seconds()
    rank, layers = np.zeros((), RANK), np.zeros(len(probe.layers), LAYER)
    rank['seconds'] = seconds
    order = [c.layer for c in probe.calls if c.group is not None]
    order += [c.layer for c in probe.later if c.communicates]
    rank['order'] = _hash(np.array(order, 'i8'))
    calls, before, after = _to_host(probe)
    broken_later = _broken_later(probe)
    moments = []
    for index, layer in enumerate(probe.layers):
        places = [i for i, c in enumerate(probe.calls) if c.layer == index]
        row = layers[index]
        _describe(row, layer)
        row['seconds'] = by_layer[index]
        row['communicates'] = any(
            probe.calls[i].group is not None for i in places
        )
        _tell_calls(row, places, [calls[i] for i in places])
        row['calls'] += sum(c.layer == index for c in probe.later)
        if row['broken_call'] < 0:
            row['broken_call'] = broken_later.get(index, -1)
        if places:
            _tell_drift(row, layer, calls[places[0]], before[index])
        if after[index]:
            _tell_buffers(row, np.stack(after[index]))
        moments.append(_sampled(layer, calls[places[0]] if places else None))
    return np.concatenate(
        [x.reshape(-1).view('f8') for x in (rank, layers, *moments)]
    )


def _to_host(
    probe: Probe,
) -> tuple[list[_HostCall], list[list[np.ndarray]], list[list[np.ndarray]]]:
    """Return calls, and buffers before and after: one copy from the device."""
    nested: list[list[list[Tensor]]] = [
        [[c.mean, c.second, *(c.group or ())] for c in probe.calls],
        probe.before,
        [running_stats(layer) for layer in probe.layers],
    ]
    tensors = [t for lists in nested for some in lists for t in some]
    if not tensors:
        nothing: list[list[np.ndarray]] = [[] for _ in probe.layers]
        return [], nothing, nothing
    flat = torch.cat([t.detach().double().flatten() for t in tensors])
    parts = flat.cpu().split([t.numel() for t in tensors])
    arrays = iter([part.numpy() for part in parts])
    moments, before, after = (
        [[next(arrays) for _ in some] for some in lists] for lists in nested
    )
    return list(map(_host_call, probe.calls, moments)), before, after


def _broken_later(probe: Probe) -> dict[int, int]:
    """Return by layer the place of its first later call with NaN or Inf."""
    if not probe.later:
        return {}
    finite = torch.stack([call.finite for call in probe.later]).cpu()
    found: dict[int, int] = {}
    for place in (~finite).nonzero().flatten().tolist():
        layer = probe.later[place].layer
        found.setdefault(layer, len(probe.calls) + place)
    return found


def _host_call(call: Call, arrays: list[np.ndarray]) -> _HostCall:
    mean, second, *group = arrays
    var = second / max(1, call.count)
    if not group:
        group = [np.array([call.count]), mean, var]
    count, group_mean, group_var = group
    return _HostCall(
        call.count, mean, var, count[0], group_mean, group_var, second
    )


def _describe(row: np.void, layer: nn.Module) -> None:
    # What is not told later is not known.
    for name in ('mean_drift', 'var_drift', 'running_var_max'):
        row[name] = np.nan
    parameters = list(layer.parameters())
    row['training'] = layer.training
    row['trained'] = not parameters or any(p.requires_grad for p in parameters)
    if isinstance(layer, MegDetSyncBN):
        row['bn_size'] = layer.bn_size or 0
        row['ranks'] = layer.ranks_per_group or (
            world_size() if layer.bn_size is None else 0
        )
    else:
        row['ranks'] = _foreign_ranks(layer)


def _foreign_ranks(layer: nn.Module) -> int:
    # Those that a BatchNorm other than ours takes statistics over.
    if not is_foreign_sync(type(layer).__name__) or not dist.is_initialized():
        return 1
    # As nn.SyncBatchNorm and mmcv's call it; None stands for all ranks.
    names = ('process_group', 'group')
    groups = [getattr(layer, name, None) for name in names]
    return dist.get_world_size(groups[0] or groups[1])


def _tell_calls(
    row: np.void, places: list[int], calls: list[_HostCall]
) -> None:
    row['calls'] = len(calls)
    row['first_call'] = places[0] if places else -1
    broken = [
        place
        for place, call in zip(places, calls, strict=True)
        if not (np.isfinite(call.mean) & np.isfinite(call.second)).all()
    ]
    row['broken_call'] = broken[0] if broken else -1
    row['first_dead'] = -1
    if not calls:
        return
    row['local_hash'] = _hash(
        *(x for c in calls for x in (np.array([c.count]), c.mean, c.second))
    )
    row['group_hash'] = _hash(
        *(x for c in calls for x in (c.group_mean, c.group_var))
    )
    first = calls[0]
    row['count'], row['group_count'] = first.count, first.group_count
    row['spreads'] = _varies(first.mean, first.var).any()
    row['local_sketch'] = _sketch(_about_zero(first.mean, first.var))
    about_zero = _about_zero(first.group_mean, first.group_var)
    row['group_sketch'] = _sketch(about_zero)
    row['group_size'] = np.abs(about_zero).sum()
    if first.group_count > 1:
        dead = ~_varies(first.group_mean, first.group_var)
        row['dead'] = dead.sum()
        row['first_dead'] = dead.argmax() if dead.any() else -1


def _tell_drift(
    row: np.void, layer: nn.Module, call: _HostCall, before: list[np.ndarray]
) -> None:
    # How far the batch is from the running statistics that it met.
    if not before or call.group_count == 0:
        return
    mean, var = before
    with np.errstate(all='ignore'):
        drift = (call.group_mean - mean) / np.sqrt(var + layer.eps)
        row['mean_drift'] = np.sqrt(np.square(drift).mean())
        if call.group_count == 1:
            return
        batch = call.group_var * (call.group_count / (call.group_count - 1))
        usable = (batch > 0) & (var > 0)
        if usable.any():
            logs = np.log(batch[usable] / var[usable])
            row['var_drift'] = np.sqrt(np.square(logs).mean())


def _tell_buffers(row: np.void, buffers: np.ndarray) -> None:
    row['buffer_hash'] = _hash(buffers)
    row['buffer_sketch'] = _sketch(buffers.reshape(-1))
    row['broken_buffers'] = (~np.isfinite(buffers)).any(0).sum()
    row['running_var_max'] = buffers[1].max()


def _sampled(layer: nn.Module, call: _HostCall | None) -> np.ndarray:
    channels = sampled_channels(layer.num_features)
    both = np.zeros((2, len(channels)), 'f4')
    if call is not None:
        with np.errstate(over='ignore'):
            both[:] = call.mean[channels], call.var[channels]
    return both


def _varies(mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    # The negation counts NaN as varying: that has a check of its own.
    return ~(var <= NO_VARIANCE * np.square(mean))


def _about_zero(mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    # Mean and mean square: those of a group are averages of its ranks'.
    return np.concatenate([mean, var + np.square(mean)])


def _hash(*arrays: np.ndarray) -> float:
    # 48 bits, which float64 holds exactly.
    digest = blake2b(digest_size=6)
    for array in arrays:
        # NaNs come with different bits.
        array = np.where(np.isnan(array), np.nan, array)
        digest.update(np.ascontiguousarray(array).tobytes())
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
