# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Short vectors that stand for long ones where only lengths matter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

# A prime, so that what a layer has at regular places does not meet.
_SIZE = 1021


class Sketch:
    """Sums of a part's gradient elements with random signs, by micro-step.

    An element goes to the place of its position modulo the size, with a
    random sign. So sketches add up as gradients do, whoever has taken them,
    and the square of a sketch has the square of the gradient as its mean over
    signs, and about ``sqrt(2 / 1021)`` of that as its deviation. A part of no
    more elements than the size keeps its squares exactly.

    Args:
        parameters (Sequence[nn.Parameter]): The part's.
        micro_steps (int): Of an update.
        seed (int): Of the signs: the same on ranks whose sketches are to be
            added, another in each update.

    Attributes:
        values (Tensor): The sketches, ``(micro_steps, 1021)``, in float64.
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
        flat = widened(grad) * self._signs[parameter]
        begin = self._begins[parameter]
        rest = -(begin + flat.numel()) % _SIZE
        sums = pad(flat, (begin, rest)).reshape(-1, _SIZE).sum(0)
        self.values[micro_step] += sums


def widened(grad: Tensor) -> Tensor:
    """Return a gradient's elements in a row, in float32 or wider."""
    flat = grad.detach().reshape(-1)
    return flat.to(torch.promote_types(flat.dtype, torch.float32))
