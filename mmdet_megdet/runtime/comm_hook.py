# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Compressing gradients on their way: DDP's communication hooks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

from ..errors import ConfigError

_POWER_SGD = 'powerSGD'
# A gradient of all zeros, as a mask head's without objects, becomes NaN by
# PyTorch's defaults (0 and True). With a positive epsilon and a warm start it
# becomes zero, and so do all later gradients, which start from it.
_POWER_SGD_DEFAULTS = dict(orthogonalization_epsilon=1e-12, warm_start=False)
_HOOKS: dict[str, Callable] = {
    'fp16_compress': default_hooks.fp16_compress_hook,
    'bf16_compress': default_hooks.bf16_compress_hook,
    _POWER_SGD: powerSGD_hook.powerSGD_hook,
}


def register_comm_hook(
    model: DistributedDataParallel, comm_hook: str | Mapping
) -> None:
    """Let DDP send its gradients through one of PyTorch's hooks.

    ``comm_hook`` is 'fp16_compress', 'bf16_compress' or 'powerSGD', or a
    mapping with such a ``type`` and arguments, which only 'powerSGD' has:
    those of PyTorch's ``PowerSGDState``, with other defaults. Its state is in
    no checkpoint: after a resume it starts anew, with ``start_powerSGD_iter``
    uncompressed updates.
    """
    options = dict(
        comm_hook if isinstance(comm_hook, Mapping) else dict(type=comm_hook)
    )
    name = options.pop('type', None)
    if name not in _HOOKS:
        raise ConfigError(
            f'comm_hook={comm_hook!r} names no communication hook: '
            f'{", ".join(_HOOKS)}, as a name or as dict(type=name, ...).'
        )
    if options and name != _POWER_SGD:
        raise ConfigError(f'comm_hook {name} has no arguments: {options}.')
    group, hook = model.process_group, _HOOKS[name]
    state: Any = group
    if dist.get_backend(group) == 'gloo':
        hook = _unnamed(hook)
    try:
        if name == _POWER_SGD:
            options = {**_POWER_SGD_DEFAULTS, **options}
            state = powerSGD_hook.PowerSGDState(group, **options)
        model.register_comm_hook(state, hook)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f'comm_hook {name} with {options} does not work with this build '
            f'of PyTorch and {dist.get_backend(group)}: {error}'
        ) from error


def _unnamed(hook: Callable) -> Callable:
    """Return a hook that PyTorch does not know by its name.

    It refuses bfloat16 where it was built without NCCL; gloo reduces it.
    """
    return lambda state, bucket: hook(state, bucket)
