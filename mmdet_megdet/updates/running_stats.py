# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Norm layers' running statistics, moved once an update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from ..upstream.torch_names import copy_all, lerp_all, maximum_all

_FLOATS = ('running_mean', 'running_var')
_COUNTS = ('num_batches_tracked',)


class RunningStatistics:
    """Move running statistics once for all micro-steps of an update.

    Each micro-step starts from the update's start; its end has the mean of
    what they came to. A layer's step is linear in the statistics of its
    batch, ``r <- (1 - m) r + m s``, so that is ``(1 - m) r + m * mean(s)``:
    what one micro-step does with as many BN groups, pooled. Whatever has
    buffers of these names takes part.
    """

    def __init__(self, model: nn.Module) -> None:
        self._floats = _Buffers(model, _FLOATS)
        self._counts = _Buffers(model, _COUNTS)

    def begin(self) -> None:
        """Save the statistics at the start of an update."""
        for buffers in (self._floats, self._counts):
            copy_all(buffers.start, buffers.now)

    @contextmanager
    def micro_step(self, index: int) -> Iterator[None]:
        """Run micro-step number ``index`` from the update's start."""
        if index:
            self.restore()
        yield
        if index == 0:
            for buffers in (self._floats, self._counts):
                copy_all(buffers.result, buffers.now)
        else:
            # The mean so far; what does not move stays bit for bit.
            lerp_all(self._floats.result, self._floats.now, 1 / (index + 1))
            maximum_all(self._counts.result, self._counts.now)

    def finish(self) -> None:
        """Set the statistics to the mean over the update's micro-steps."""
        for buffers in (self._floats, self._counts):
            copy_all(buffers.now, buffers.result)

    def restore(self) -> None:
        """Reset the statistics to those at the update's start."""
        for buffers in (self._floats, self._counts):
            copy_all(buffers.now, buffers.start)


class _Buffers:
    """A model's buffers of some names, with two copies."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        self.now: list[Tensor] = [
            buffer
            for module in model.modules()
            for name, buffer in module.named_buffers(recurse=False)
            if name in names
        ]
        self.start = [buffer.clone() for buffer in self.now]
        self.result = [buffer.clone() for buffer in self.now]
