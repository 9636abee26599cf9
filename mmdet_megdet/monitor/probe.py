# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Listening to a model's BatchNorm layers during one training iteration."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from mmengine.model import is_model_wrapper
from torch import Tensor, nn

from ..sync_bn import (
    CollectiveTimer,
    MegDetSyncBN,
    Observation,
    report_batch_norm,
)


class Call(NamedTuple):
    """One forward of a layer.

    Attributes:
        layer (int): Its place in :attr:`Probe.layers`.
        communicates (bool): Whether it normalised by a group's statistics.
        finite (Tensor): Whether this rank's batch is free of NaN and Inf.
    """

    layer: int
    communicates: bool
    finite: Tensor


class Probe:
    """Listen to every BatchNorm of a model during an iteration.

    Between :meth:`attach` and :meth:`detach` it notes every call, but for
    recomputations: of a ``MegDetSyncBN`` in training mode what its observer
    is told, of any other the moments of its input. Nothing waits for the
    device before :meth:`detach`. Outside of the two nothing is attached.

    Attributes:
        names (list[str]): The layers' names, in the model's order.
        layers (list[nn.Module]): The layers.
        calls (list[Call]): The iteration's, in order.
        first (dict[int, list[Tensor]]): Of each layer's first call: count,
            mean and biased variance of this rank's batch, and those of the
            group's, by which the layer normalised.
        before (list[list[Tensor]]): Each layer's running mean and variance
            as they were before the iteration; empty lists where it has none.
    """

    def __init__(self, model: nn.Module) -> None:
        while is_model_wrapper(model):
            model = cast(nn.Module, model.module)
        report = report_batch_norm(model)
        known = {*report.synced, *report.in_eval, *report.others}
        found = [(n, m) for n, m in model.named_modules() if n in known]
        self.names = [name for name, _ in found]
        self.layers = [layer for _, layer in found]
        self.device = next(model.parameters(), torch.empty(0)).device
        self._attached = ExitStack()
        self._forget()

    def _forget(self) -> None:
        self.calls: list[Call] = []
        self.first: dict[int, list[Tensor]] = {}
        self.before: list[list[Tensor]] = []
        self._collectives: list[list[CollectiveTimer]] = []
        self._iteration = CollectiveTimer(self.device)

    def attach(self) -> None:
        """Begin to listen."""
        self._forget()
        self.before = [
            [buffer.detach().clone() for buffer in running_stats(layer)]
            for layer in self.layers
        ]
        for index, layer in enumerate(self.layers):
            if isinstance(layer, MegDetSyncBN) and layer.training:
                layer.observer = partial(self._observe, index)
                self._attached.callback(setattr, layer, 'observer', None)
            else:
                handle = layer.register_forward_pre_hook(
                    partial(self._look_at_input, index), with_kwargs=True
                )
                self._attached.callback(handle.remove)
        # Last in, first out: the time of listening itself is not in it.
        self._attached.enter_context(self._iteration)

    def detach(self) -> None:
        """Stop listening; without :meth:`attach` before, do nothing."""
        self._attached.close()

    def seconds(self) -> tuple[float, float]:
        """Return the iteration's time, and that of all collectives in it.

        Those that activation checkpointing repeats are among them. On CUDA
        wait until all are over.
        """
        timers = [timer for timers in self._collectives for timer in timers]
        collectives = sum(timer.seconds() for timer in timers)
        return self._iteration.seconds(), collectives

    def _observe(self, index: int, seen: Observation) -> None:
        # The list itself: backward will add to it.
        self._collectives.append(seen.collectives)
        if seen.recomputed:
            return
        finite = torch.isfinite(seen.mean) & torch.isfinite(seen.second)
        self.calls.append(Call(index, bool(seen.collectives), finite.all()))
        if index not in self.first:
            count = seen.mean.new_full((), seen.count)
            var = seen.second / max(1, seen.count)
            group = [seen.group_count, seen.group_mean, seen.group_var]
            self.first[index] = [count, seen.mean, var, *group]

    @torch.no_grad()
    def _look_at_input(
        self, index: int, layer: nn.Module, args: tuple, kwargs: dict[str, Any]
    ) -> None:
        x = args[0] if args else kwargs['input']
        self._observe(index, Observation.alone(x))


def running_stats(layer: nn.Module) -> list[Tensor]:
    """Return running mean and variance; an empty list without them."""
    if layer.running_mean is None:
        return []
    return [cast(Tensor, layer.running_mean), cast(Tensor, layer.running_var)]
