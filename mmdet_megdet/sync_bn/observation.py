# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The data that ``MegDetSyncBN`` passes to its observer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..upstream.torch_names import in_recomputation
from .kernels import local_moments
from .moments import Moments, pack, unpack


class CollectiveTimer:
    """Time that a collective keeps a rank, waiting for others included.

    On CUDA by events, so that nothing waits before :meth:`seconds` asks.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == 'cuda'
        self._marks: list[Any] = []

    def _mark(self) -> None:
        if self._on_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def __enter__(self) -> CollectiveTimer:
        self._mark()
        return self

    def __exit__(self, *_: object) -> None:
        self._mark()

    def seconds(self) -> float:
        """Return the time taken; on CUDA wait until the collective is over."""
        start, end = self._marks
        if not self._on_cuda:
            return end - start
        end.synchronize()
        return start.elapsed_time(end) / 1e3


@dataclass(frozen=True)
class Observation:
    """One training forward of a layer.

    The tensors are float64 and must not be changed. A position is an element
    of a channel: there are N times the spatial size.

    Attributes:
        count (int): Positions in this rank's batch.
        mean (Tensor): Local mean ``(C, )``; 0 in an empty batch.
        second (Tensor): Local sum of squared deviations from it ``(C, )``.
        group_mean (Tensor): Mean over the BN group ``(C, )``.
        group_var (Tensor): Biased variance over the group ``(C, )``.
        group_count (Tensor): Positions in the group's batch ``()``.
        collectives (list[CollectiveTimer]): Forward's; the layer's backward
            adds its own. Empty where the layer does not communicate.
        recomputed (bool): Whether activation checkpointing repeats it.
    """

    count: int
    mean: Tensor
    second: Tensor
    group_mean: Tensor
    group_var: Tensor
    group_count: Tensor
    collectives: list[CollectiveTimer]
    recomputed: bool

    @classmethod
    def of(
        cls, x: Tensor, local: Moments, group: Moments, timers: list
    ) -> Observation:
        """Return an observation of an input, by what ``unpack`` returned."""
        mean, var, count = local
        moments = x.numel() // x.shape[1], mean, var * count
        return cls(*moments, *group, timers, in_recomputation())

    @classmethod
    def alone(cls, x: Tensor) -> Observation:
        """Return an observation of an input that has its own statistics."""
        moments = unpack(pack(*local_moments(x.detach())))
        return cls.of(x, moments, moments, [])
