# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What an update's gradients say, listened to while training makes them."""

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

from ..sync_bn.groups import bn_group, world_size
from .estimator import Moments, from_groups, from_micro_steps
from .parts import TOTAL


class Split(NamedTuple):
    """What of an update is independent: BN groups in micro-steps.

    Attributes:
        micro_steps: Micro-steps of an update.
        ranks: Consecutive ranks in a BN group.
        images: Images of an update.
    """

    micro_steps: int
    ranks: int
    images: int

    @property
    def groups(self) -> int:
        """BN groups in a micro-step."""
        return world_size() // self.ranks

    @property
    def part_images(self) -> int:
        """Images of a BN group in a micro-step."""
        return self.images // (self.groups * self.micro_steps)


class ManyPiecesError(RuntimeError):
    """A parameter's gradient came in several pieces in one micro-step."""


class GradientMeter:
    """Listens to the gradients of one update at a time.

    Contract:

    - Between :meth:`attach` and :meth:`detach` there are tensor hooks on the
      parameters and a method in the place of ``optim_wrapper.step``; outside
      of the two, nothing. It changes no gradient.
    - The hooks see a micro-step's own gradient, ahead of accumulation and of
      DDP's reduction. From the second micro-step on that is multiplied with
      what the rank has accumulated before, which adds up to the products of
      all pairs. Of an update of one micro-step they take the square, or,
      where a BN group is several ranks, a copy to be reduced within it.
    - The update's own gradient is looked at when the optimizer's step
      begins: after DDP, ahead of clipping.
    - Under mixed precision gradients are divided by the loss scale.
    - :meth:`measure` is a collective: one all-reduce of two numbers for each
      part and one more, on BatchNorm's group of all ranks; and one of the
      gradient's size within BN groups of several ranks, where an update is
      one micro-step.

    Args:
        parts (Mapping[str, Sequence[nn.Parameter]]): Parameters by part.
        split (Split): What is independent: at least two parts.
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

    def attach(self, wrapper: OptimWrapper) -> None:
        """Begin to listen to an update."""
        self._wrapper = wrapper
        self._products = {name: [] for name in self._parts}
        self._squares = {name: [] for name in self._parts}
        self._copies: dict[nn.Parameter, Tensor] = {}
        self._seen: set[nn.Parameter] = set()
        self._in_pieces = self._stepped = False
        for name, parameters in self._parts.items():
            for parameter in parameters:
                if parameter.requires_grad:
                    handle = parameter.register_hook(
                        partial(self._look, name, parameter)
                    )
                    self._attached.callback(handle.remove)
        own = vars(wrapper).get('step')
        self._attached.callback(_put_back, wrapper, own)
        wrapper.step = partial(self._step, wrapper.step)

    def begin_micro_step(self) -> None:
        """Begin a micro-step."""
        self._seen.clear()

    def detach(self) -> None:
        """Stop listening; without :meth:`attach` before, do nothing."""
        self._attached.close()

    def measure(self) -> dict[str, Moments] | None:
        """Return the moments of each part and of the total.

        They are the same on all ranks. A collective, behind :meth:`detach`.

        Returns:
            dict[str, Moments] or None: None where the optimizer has made no
            step, or numbers are not finite, as when a gradient overflows in
            mixed precision.

        Raises:
            ManyPiecesError: On every rank, if gradients came in pieces.
        """
        if not self._stepped:
            return None
        numbers = torch.cat(
            [
                self._own(),
                _sums(self._squares, self._device),
                torch.tensor([self._in_pieces]).to(self._device),
            ]
        )
        group = bn_group(None, self._device)
        if group is not None:
            dist.all_reduce(numbers, group=group)
        *numbers, in_pieces = numbers.tolist()
        self._copies, self._products, self._squares = {}, {}, {}
        if in_pieces:
            raise ManyPiecesError
        count = len(self._parts)
        found = {
            name: self._moments(numbers[i], numbers[count + i])
            for i, name in enumerate(self._parts)
        }
        g2, s = (sum(column) for column in zip(*found.values(), strict=True))
        total = Moments(g2, s)
        if not all(map(math.isfinite, total)):
            return None
        return {TOTAL: total, **found}

    def _look(self, name: str, parameter: nn.Parameter, grad: Tensor) -> None:
        """The tensor hook."""
        if parameter in self._seen:
            self._in_pieces = True
        self._seen.add(parameter)
        if self.split.micro_steps > 1:
            if parameter.grad is not None:
                self._products[name].append(_product(parameter.grad, grad))
        elif self.split.ranks == 1:
            self._products[name].append(_product(grad, grad))
        else:
            self._copies[parameter] = grad.detach().clone()

    def _step(self, step: Any, *args, **kwargs) -> None:
        """In the place of the wrapper's ``step``."""
        for name, parameters in self._parts.items():
            self._squares[name] = [
                _product(p.grad, p.grad)
                for p in parameters
                if p.grad is not None
            ]
        self._stepped = True
        scaler = getattr(self._wrapper, 'loss_scaler', None)
        self._scale = 1.0 if scaler is None else scaler.get_scale()
        step(*args, **kwargs)

    def _own(self) -> Tensor:
        """By part, this rank's share of what is added up over ranks."""
        ranks = self.split.ranks
        if self.split.micro_steps > 1 or ranks == 1:
            return _sums(self._products, self._device)
        # Of the whole size on every rank, whatever has a gradient there.
        flat = torch.cat(
            [
                self._copies.get(p, torch.zeros_like(p)).detach().reshape(-1)
                for ps in self._parts.values()
                for p in ps
            ]
        )
        sizes = [sum(p.numel() for p in ps) for ps in self._parts.values()]
        dist.all_reduce(flat, group=bn_group(ranks, self._device))
        squares = [_product(part, part) for part in flat.split(sizes)]
        # The mean over the group, squared; its ranks add it up again.
        return torch.stack(squares).double() / ranks**3

    def _moments(self, own: float, whole: float) -> Moments:
        """The moments from sums over all ranks."""
        steps, images = self.split.micro_steps, self.split.images
        own, whole = own / self._scale**2, whole / self._scale**2
        whole /= world_size()
        if steps == 1:
            return from_groups(own, self.split.groups, whole, images)
        # The wrapper divides each micro-step's loss by their number.
        products = own * steps**2 / world_size()
        return from_micro_steps(products, steps, whole, images)


def _put_back(wrapper: OptimWrapper, own: Any) -> None:
    if own is None:
        # The class's method comes to the fore again.
        vars(wrapper).pop('step', None)
    else:
        wrapper.step = own


def _product(left: Tensor, right: Tensor) -> Tensor:
    """The scalar product, in float32 or wider."""
    dtype = torch.promote_types(left.dtype, torch.float32)
    left, right = (t.detach().reshape(-1).to(dtype) for t in (left, right))
    return torch.dot(left, right)


def _sums(
    products: Mapping[str, Sequence[Tensor]], device: torch.device
) -> Tensor:
    none = torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack(
        [
            torch.stack([x.double() for x in found]).sum() if found else none
            for found in products.values()
        ]
    )
