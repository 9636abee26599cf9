# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What ranks tell each other of an iteration: one vector of a fixed size."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from ..sync_bn import MegDetSyncBN
from ..sync_bn.groups import world_size
from .probe import Probe

# Channels of which a rank tells mean and variance: enough for a share that is
# an average over channels, and 128 ranks' moments of a ResNet-50 are 13 MB.
MAX_CHANNELS = 256
SKETCH = 4

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
        """The ranks of each BN group, by what most ranks say of the layer.

        All ranks in one group, where the layer has none.
        """
        ranks = int(majority(self.layers['ranks'][:, layer])[0])
        size = ranks if ranks > 1 else self.world_size
        return [
            range(first, min(first + size, self.world_size))
            for first in range(0, self.world_size, size)
        ]


def is_foreign_sync(kind: str) -> bool:
    """Whether a class of that name is another synchronised BatchNorm."""
    return 'SyncBatchNorm' in kind


def majority(values: np.ndarray) -> tuple[float, list[int]]:
    """The most frequent value, and the places that have another.

    All places, if there is a tie: nobody can tell then who is right.
    """
    found, counts = np.unique(values, return_counts=True)
    most = found[counts.argmax()]
    if len(found) > 1 and (counts == counts.max()).sum() > 1:
        return float(most), list(range(len(values)))
    return float(most), np.flatnonzero(values != most).tolist()


def gather(vector: np.ndarray, device: torch.device) -> np.ndarray:
    """All ranks' vectors, ``(R, size)``: the one collective.

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
    """The numbers in what was gathered."""
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
    """Those of a layer whose moments are told, evenly spaced."""
    taken = min(number, MAX_CHANNELS)
    return np.linspace(0, number - 1, taken).round().astype(int)
