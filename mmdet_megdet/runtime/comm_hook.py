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
# A layer of a detector may have a gradient of all zeros: a mask head has,
# where no image of the batch shows an object. By PyTorch's defaults (0 and
# True) that becomes NaN. With a positive epsilon and a warm start it becomes
# zero, and so do all later gradients of that layer, which start from it.
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

    Args:
        model (DistributedDataParallel): Just wrapped; it takes one hook.
        comm_hook (str or Mapping): 'fp16_compress', 'bf16_compress' or
            'powerSGD'; or a mapping with such a ``type`` and the hook's
            arguments, which only 'powerSGD' has: those of PyTorch's
            ``PowerSGDState``. Unlike there ``orthogonalization_epsilon``
            defaults to 1e-12 and ``warm_start`` to False. Its state is in no
            checkpoint: after a resume it starts anew, with
            ``start_powerSGD_iter`` uncompressed updates.
    """
    options = dict(
        comm_hook if isinstance(comm_hook, Mapping) else dict(type=comm_hook)
    )
    name = options.pop('type', None)
    if name not in _HOOKS:
        raise ConfigError(
            f'comm_hook={comm_hook!r} names no communication hook: choose '
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
            f'of PyTorch and the {dist.get_backend(group)} backend: {error}'
        ) from error


def _unnamed(hook: Callable) -> Callable:
    """Return a hook that PyTorch does not know by its name.

    It refuses the bfloat16 one wherever it was built without CUDA and NCCL;
    gloo reduces bfloat16.
    """
    return lambda state, bucket: hook(state, bucket)
