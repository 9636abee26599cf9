# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The model wrapper with which one config runs on GPUs and on CPUs."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from mmengine.model import MMDistributedDataParallel
from mmengine.registry import MODEL_WRAPPERS
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# torch 2.13 calls it by another name and warns at the old one.
_DDP_OPTIONS = inspect.signature(DistributedDataParallel).parameters
_BROADCAST = (
    'forward_sync_buffers'
    if 'forward_sync_buffers' in _DDP_OPTIONS
    else 'broadcast_buffers'
)


@MODEL_WRAPPERS.register_module()
class MegDetDistributedDataParallel(MMDistributedDataParallel):
    """MMEngine's distributed wrapper, for models on a GPU or on the CPU.

    The Runner builds it from ``cfg.model_wrapper_cfg`` in a distributed run
    and always passes ``device_ids``, which torch refuses for a model on the
    CPU: there they are ignored. Buffers stay as each rank has them: rank 0's
    would otherwise overwrite the running statistics of every rank before
    each forward. (They are equal at the start: the Runner broadcasts rank
    0's weights and buffers once they are initialised.)

    Args:
        module (nn.Module): The model, already on its device.
        device_ids (sequence, optional): The GPU of this rank. Defaults to
            None.
        broadcast_buffers (bool): Whether rank 0's buffers overwrite the
            others' before each forward. Defaults to False.
        find_unused_parameters (bool): Whether parameters may stay without a
            gradient in an iteration. Defaults to False.
        **kwargs: Passed to :class:`MMDistributedDataParallel`.

    Examples:
        >>> model_wrapper_cfg = dict(type='MegDetDistributedDataParallel')
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        broadcast_buffers: bool = False,
        find_unused_parameters: bool = False,
        **kwargs,
    ) -> None:
        on_cpu = all(p.device.type == 'cpu' for p in module.parameters())
        super().__init__(
            module=module,
            device_ids=None if on_cpu else device_ids,
            find_unused_parameters=find_unused_parameters,
            **{_BROADCAST: broadcast_buffers},
            **kwargs,
        )
