# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The passes over the data, with one interface: plain operations, or Triton.

An implementation is a module with six functions, which :mod:`.plain`
and :mod:`.fused` both have:

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
``MEGDET_BN_KERNELS`` chooses; ``docs/sync_bn.md`` has its values.
"""

from __future__ import annotations

import os
import warnings
from types import ModuleType

import torch
from torch import Tensor

from ...errors import ConfigError
from . import check, plain
from .check import find_fault
from .plain import local_moments

__all__ = [
    'check',
    'choose',
    'dtype_of',
    'fault',
    'interpreted',
    'load',
    'local_moments',
    'outcome',
]

VARIABLE = 'MEGDET_BN_KERNELS'
TRITON = 'Triton kernels, checked against plain operations'
_CHOICES = ('auto', 'triton', 'plain')

# Devices and dtypes that passed, and why a device did not.
_passed: set[tuple[torch.device, torch.dtype, torch.dtype]] = set()
_faults: dict[torch.device, str] = {}


def choose(x: Tensor, weight: Tensor | None) -> ModuleType:
    """Return the implementation that serves a layer's input.

    The first call for a device and its dtypes runs the check.

    Raises:
        ConfigError: If MEGDET_BN_KERNELS has no meaning, or asks for Triton
            where it does not run or did not pass.
    """
    asked = _asked()
    if asked == 'plain':
        return plain
    if not x.is_cuda:
        if asked == 'auto':
            return plain
        if not interpreted():
            raise ConfigError(
                f'{VARIABLE}=triton, and a MegDetSyncBN got a tensor on '
                f'{x.device}: Triton needs a GPU. Set {VARIABLE}=auto, or '
                'TRITON_INTERPRET=1 to run the kernels in its interpreter.'
            )
    elif not _trusted(x.device, x.dtype, dtype_of(weight), asked):
        return plain
    from . import fused

    return fused


def load(device: torch.device, parameter_dtypes: set[torch.dtype]) -> None:
    """Compile, load and check all kernels that training may need.

    ``parameter_dtypes`` are those of the layers' weights; inputs may be in
    half precision too, if autocast makes them so.
    """
    asked = _asked()
    if asked == 'plain' or device.type != 'cuda':
        return
    inputs = {torch.float32, torch.float16, torch.bfloat16, *parameter_dtypes}
    for parameter_dtype in sorted(parameter_dtypes, key=str):
        for dtype in sorted(inputs, key=str):
            _trusted(device, dtype, parameter_dtype, asked)


def outcome(device: torch.device) -> str:
    """Return which kernels serve a device, and why."""
    asked = _asked()
    if asked == 'plain':
        return f'plain operations, as {VARIABLE}=plain has it'
    if device.type != 'cuda':
        return f'plain operations: {device.type} is no GPU'
    load(device, {torch.float32})
    if device in _faults:
        return f'plain operations: {_faults[device]}'
    return TRITON


def fault(device: torch.device) -> str | None:
    """Return why a device's kernels did not pass; None where none failed."""
    return _faults.get(device)


def interpreted() -> bool:
    """Return whether Triton interprets kernels on the CPU."""
    value = os.environ.get('TRITON_INTERPRET', '0').lower()
    return value in ('1', 'true', 'on', 'yes', 'y')


def _asked() -> str:
    asked = os.environ.get(VARIABLE, 'auto')
    if asked not in _CHOICES:
        raise ConfigError(
            f'{VARIABLE}={asked!r} is none of {", ".join(_CHOICES)}: set one '
            'of them, or unset it for auto.'
        )
    return asked


def dtype_of(weight: Tensor | None) -> torch.dtype:
    """Return the dtype of a layer's parameters, if it has any."""
    return torch.float32 if weight is None else weight.dtype


def _trusted(
    device: torch.device,
    dtype: torch.dtype,
    parameter_dtype: torch.dtype,
    asked: str,
) -> bool:
    """Return whether the kernels passed, and say once if they did not."""
    key = (device, dtype, parameter_dtype)
    if key not in _passed and device not in _faults:
        reason = find_fault(*key)
        if reason is None:
            _passed.add(key)
        else:
            _faults[device] = reason
            if asked == 'auto':
                warnings.warn(
                    f'MegDetSyncBN does without its Triton kernels on '
                    f'{device}: {reason}. It takes plain operations, as exact '
                    f'and slower. {VARIABLE}=plain asks for them.',
                    stacklevel=2,
                )
    if device not in _faults:
        return True
    if asked == 'triton':
        raise ConfigError(
            f'{VARIABLE}=triton, and the kernels did not pass on {device}: '
            f'{_faults[device]}. Set {VARIABLE}=auto to go on with plain '
            'operations.'
        )
    return False
