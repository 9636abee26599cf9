# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The passes over the data, behind one seam.

An implementation is a module with six functions, which
:mod:`.plain` documents:

- ``prepare(x)`` and ``prepare(dy, x)``: the layouts that the others take;
- ``local_sums(x)``: this rank's sums, float64 ``(2C + 1, )`` as
  :func:`~..moments.pack` makes them, and what ``normalise`` needs besides;
- ``normalise(...)``: the output by the group's sums, and vectors to be saved
  for backward; updates the running statistics;
- ``gradient_sums(...)``: this rank's ``sum(dy)`` and ``sum(dy * d)``, float64
  ``(2C, )``, and the gradients of weight and bias;
- ``begin_input_gradient(...)`` and ``finish_input_gradient(...)``: that of the
  input, before and after the group's sums are there.

The sums mean the same in each, so ranks may differ in implementation.
"""

from __future__ import annotations

from types import ModuleType

from torch import Tensor

from . import plain
from .plain import local_moments

__all__ = ['choose', 'local_moments']


def choose(x: Tensor) -> ModuleType:
    """Return the implementation that serves an input."""
    return plain
