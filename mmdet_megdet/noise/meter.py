# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Squared norms of an update's gradients, taken while training makes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from mmengine.optim import OptimWrapper
from torch import Tensor, nn
from torch.nn.functional import pad

from ..errors import ConfigError
from ..sync_bn import bn_group, world_size
from .estimator import Moments, from_parts
from .parts import TOTAL

# Numbers of a sketch. A prime, so that what a layer has at regular places
# does not meet.
_SIZE = 1021


class Split(NamedTuple):
    """The independent parts of an update: BN groups in micro-steps."""

    micro_steps: int
    ranks: int  # in a BN group, consecutive
    images: int  # of an update

    @property
    def groups(self) -> int:
        """BN groups in a micro-step."""
        return world_size() // self.ranks

    @property
    def part_images(self) -> int:
        """Images of a BN group in a micro-step."""
        return self.images // (self.groups * self.micro_steps)


class GradientMeter:
    """Take the squared norms of one update's gradients at a time.

    Contract:

    - Between :meth:`attach` and :meth:`detach` there are tensor hooks on the
      parameters and a method in the place of ``optim_wrapper.step``; outside
      of the two, nothing. It changes no gradient.
    - The hooks see a micro-step's own gradient, ahead of accumulation and of
      DDP's reduction. Of a BN group of one rank they take the square. One of
      several ranks has the mean of their gradients, whose squares do not add
      up: there each rank takes a :class:`Sketch`, and sketches do.
    - The update's own gradient is looked at when the optimizer's step
      begins: after DDP, ahead of clipping. Loss scales are divided out.

    Args:
        parts (Mapping[str, Sequence[nn.Parameter]]): Parameters by part.
        split (Split): What is independent: at least two BN groups in
            micro-steps.
    """

    def __init__(
        self, parts: Mapping[str, Sequence[nn.Parameter]], split: Split
    ) -> None:
        self._parts = {name: [*found] for name, found in parts.items()}
        self._device = next(
            p.device for ps in self._parts.values() for p in ps
        )
        self.split = split
        self._attached = ExitStack()

    def attach(self, wrapper: OptimWrapper, update: int) -> None:
        """Begin to measure an update of this number."""
        self._wrapper = wrapper
        self._micro_step = -1
        self._seen: set[nn.Parameter] = set()
        self._in_pieces = self._stepped = False
        self._own: dict[str, list[Tensor]] = {n: [] for n in self._parts}
        self._whole: dict[str, list[Tensor]] = {n: [] for n in self._parts}
        self._sketches = [
            Sketch(parameters, self.split.micro_steps, seed)
            for seed, parameters in enumerate(
                self._parts.values(), update * len(self._parts)
            )
            if self.split.ranks > 1
        ]
        for index, (name, parameters) in enumerate(self._parts.items()):
            for parameter in parameters:
                if parameter.requires_grad:
                    look = partial(self._look, index, name, parameter)
                    handle = parameter.register_hook(look)
                    self._attached.callback(handle.remove)
        own = vars(wrapper).get('step')
        self._attached.callback(_put_back, wrapper, own)
        wrapper.step = partial(self._step, wrapper.step)

    def begin_micro_step(self) -> None:
        """Begin a micro-step."""
        self._micro_step += 1
        self._seen.clear()

    def detach(self) -> None:
        """Stop measuring; without :meth:`attach` before, do nothing."""
        self._attached.close()

    def measure(self) -> dict[str, Moments] | None:
        """Return the moments of each part and of the total, on all ranks.

        A collective, behind :meth:`detach`: one all-reduce, on BatchNorm's
        group of all ranks. None where the optimizer has made no step, or
        numbers are not finite, as when a gradient overflows in mixed
        precision. A gradient that came in pieces is a ConfigError.
        """
        numbers = self._gathered() if self._stepped else None
        self._own, self._whole, self._sketches = {}, {}, []
        if numbers is None:
            return None
        own, whole, in_pieces = numbers
        if in_pieces:
            raise ConfigError(
                "GradientNoiseHook: a parameter's gradient came in several "
                'pieces, as by re-entrant checkpointing of a module that is '
                'called twice. Use use_reentrant=False there.'
            )
        found = {
            name: self._moments(*pair)
            for name, *pair in zip(self._parts, own, whole, strict=True)
        }
        total = Moments(*map(sum, zip(*found.values(), strict=True)))
        if not all(map(math.isfinite, total)):
            return None
        return {TOTAL: total, **found}

    def _gathered(self) -> tuple[list[float], list[float], bool]:
        """Squares of independent parts and of the whole, over all ranks."""
        numbers = torch.cat(
            [
                _sums(self._own, self._device),
                _sums(self._whole, self._device),
                torch.tensor([self._in_pieces]).to(self._device),
            ]
        )
        sketches = self._in_its_place()
        group = bn_group(None, self._device)
        if group is not None:
            sent = torch.cat([numbers, sketches.flatten()])
            dist.all_reduce(sent, group=group)
            numbers, rest = sent.tensor_split([len(numbers)])
            sketches = rest.view_as(sketches)
        # Of each part of the model, over BN groups and micro-steps.
        squares = (sketches / self.split.ranks).square().sum((0, 2, 3))
        *sums, in_pieces = numbers.tolist()
        own, whole = sums[: len(self._parts)], sums[len(self._parts) :]
        if self._sketches:
            own = squares.tolist()
        return own, whole, in_pieces > 0

    def _look(
        self, index: int, name: str, parameter: nn.Parameter, grad: Tensor
    ) -> None:
        """The tensor hook."""
        if parameter in self._seen:
            self._in_pieces = True
        self._seen.add(parameter)
        if self.split.ranks == 1:
            self._own[name].append(_square(grad))
        else:
            self._sketches[index].add(self._micro_step, parameter, grad)

    def _step(self, step: Any, *args: Any, **kwargs: Any) -> None:
        """In the place of the wrapper's ``step``."""
        for name, parameters in self._parts.items():
            self._whole[name] = [
                _square(p.grad) for p in parameters if p.grad is not None
            ]
        self._stepped = True
        scaler = getattr(self._wrapper, 'loss_scaler', None)
        self._scale = 1.0 if scaler is None else scaler.get_scale()
        step(*args, **kwargs)

    def _in_its_place(self) -> Tensor:
        """Sketches by BN group, part, micro-step; empty where there are none.

        Only those of this rank's group are not 0.
        """
        if not self._sketches:
            return torch.zeros(1, 1, 1, 0, device=self._device)
        own = torch.stack([s.values for s in self._sketches])
        placed = own.new_zeros(self.split.groups, *own.shape)
        rank = dist.get_rank() if dist.is_initialized() else 0
        placed[rank // self.split.ranks] = own
        return placed

    def _moments(self, own: float, whole: float) -> Moments:
        """The moments from sums over all ranks."""
        steps = self.split.micro_steps
        # The wrapper divides each micro-step's loss by their number.
        own *= (steps / self._scale) ** 2
        whole /= world_size() * self._scale**2
        parts = steps * self.split.groups
        return from_parts(own, parts, whole, self.split.images)


def _put_back(wrapper: OptimWrapper, own: Any) -> None:
    if own is None:
        # The class's method comes to the fore again.
        vars(wrapper).pop('step', None)
    else:
        wrapper.step = own


def _sums(
    squares: Mapping[str, Sequence[Tensor]], device: torch.device
) -> Tensor:
    none = torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack(
        [torch.stack([none, *found]).sum() for found in squares.values()]
    )


class Sketch:
    """Sums of a part's gradient elements with random signs, by micro-step.

    An element goes to the place of its position modulo the size, with a
    random sign. So sketches add up as gradients do, and the square of a
    sketch has the square of the gradient as its mean over signs, and about
    ``sqrt(2 / 1021)`` of that as its deviation. A part of no more elements
    than the size keeps its squares exactly. Ranks whose sketches are added
    have the same seed. ``values`` are ``(micro_steps, 1021)``, float64.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], micro_steps: int, seed: int
    ) -> None:
        device = parameters[0].device
        self.values = torch.zeros(
            micro_steps, _SIZE, dtype=torch.float64, device=device
        )
        generator = torch.Generator(device).manual_seed(seed)
        self._signs, self._begins, begin = {}, {}, 0
        for parameter in parameters:
            size = (parameter.numel(),)
            signs = torch.empty(size, dtype=torch.int8, device=device)
            signs.random_(0, 2, generator=generator).mul_(2).sub_(1)
            self._signs[parameter] = signs
            self._begins[parameter] = begin % _SIZE
            begin += parameter.numel()

    def add(
        self, micro_step: int, parameter: nn.Parameter, grad: Tensor
    ) -> None:
        """Add a parameter's gradient to a micro-step's sketch."""
        flat = _widened(grad) * self._signs[parameter]
        begin = self._begins[parameter]
        rest = -(begin + flat.numel()) % _SIZE
        sums = pad(flat, (begin, rest)).reshape(-1, _SIZE).sum(0)
        self.values[micro_step] += sums


def _square(grad: Tensor) -> Tensor:
    """The squared norm, added up in float32 or wider."""
    flat = _widened(grad)
    return torch.dot(flat, flat).double()


def _widened(grad: Tensor) -> Tensor:
    """A gradient's elements in a row, in float32 or wider."""
    flat = grad.detach().reshape(-1)
    return flat.to(torch.promote_types(flat.dtype, torch.float32))
