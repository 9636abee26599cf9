# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The model wrapper with which one config runs on GPUs and on CPUs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.model import MMDistributedDataParallel
from mmengine.registry import MODEL_WRAPPERS
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import ConfigError
from ..sync_bn import BatchNormReport, convert_batch_norm, report_batch_norm
from ..text import some
from .comm_hook import register_comm_hook

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

    ``device_ids``, which the Runner always passes, are ignored for a model on
    the CPU. Buffers stay as each rank has them: rank 0's would otherwise
    overwrite the running statistics of every rank before each forward.

    It can convert BatchNorm before it wraps the model, and so before EMAHook
    copies it and before weights are initialised. (An ``init_cfg`` meets
    converted layers as ``layer='_BatchNorm'``.) All ranks have to call all
    synchronised layers: in mmdet's two-stage detectors convert backbone and
    neck alone.

    Args:
        module (nn.Module): The model, already on its device.
        device_ids (sequence, optional): The GPU of this rank.
        broadcast_buffers (bool): As DDP's. Defaults to False.
        convert_bn (bool or Sequence[str]): Whether every BatchNorm becomes a
            ``MegDetSyncBN``: True for the whole model, or the names of its
            parts. Defaults to False.
        bn_size (int, optional): Images over which the converted layers take
            their statistics; needs ``SyncBNGroupHook``. None: of all ranks.
        comm_hook (str or Mapping, optional): How gradients are compressed on
            their way, as :func:`register_comm_hook` takes it.
        **kwargs: Passed to :class:`MMDistributedDataParallel`.

    Examples:
        >>> model_wrapper_cfg = dict(
        ...     type='MegDetDistributedDataParallel',
        ...     convert_bn=['backbone', 'neck'],
        ...     comm_hook=dict(type='powerSGD', matrix_approximation_rank=2),
        ... )
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        broadcast_buffers: bool = False,
        convert_bn: bool | Sequence[str] = False,
        bn_size: int | None = None,
        comm_hook: str | Mapping | None = None,
        **kwargs: Any,
    ) -> None:
        if bn_size is not None and not convert_bn:
            raise ConfigError(
                f'bn_size={bn_size} is for the layers that convert_bn '
                'converts: set that too, or norm_cfg.bn_size instead.'
            )
        if convert_bn:
            names = [''] if convert_bn is True else convert_bn
            for part in _parts(module, names):
                convert_batch_norm(part, bn_size)
        on_cpu = all(p.device.type == 'cpu' for p in module.parameters())
        super().__init__(
            module=module,
            device_ids=None if on_cpu else device_ids,
            **{_BROADCAST: broadcast_buffers},
            **kwargs,
        )
        if comm_hook is not None:
            register_comm_hook(self, comm_hook)
        self._convert_bn = convert_bn
        self._bn_reported = False

    def train(self, mode: bool = True) -> MegDetDistributedDataParallel:
        """Set the mode; the first time, log which BatchNorms synchronise.

        Not before, because mmdet's backbones put layers into eval mode here
        (``norm_eval``, ``frozen_stages``).
        """
        super().train(mode)
        if mode and not self._bn_reported:
            self._bn_reported = True
            _log(report_batch_norm(self.module), self._convert_bn)
        return self


def _parts(module: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    try:
        return [module.get_submodule(name) for name in names]
    except AttributeError as error:
        children = ', '.join(name for name, _ in module.named_children())
        raise ConfigError(
            f'convert_bn={names!r}: {error}. Its parts are {children}.'
        ) from None


def _log(report: BatchNormReport, convert_bn: bool | Sequence[str]) -> None:
    ours = len(report.synced) + len(report.in_eval)
    if not ours and not report.others and not convert_bn:
        return
    lines = [f'BatchNorm: {ours} layers are MegDetSyncBN']
    if report.in_eval:
        lines.append(
            f'{len(report.in_eval)} of them are in eval mode and do not '
            'synchronise (norm_eval, frozen_stages): '
            f'{some(report.in_eval, 5)}'
        )
    if report.others:
        lines.append(
            f'{len(report.others)} more are none '
            f'({some(dict.fromkeys(report.others.values()))}): '
            f'{some(report.others, 5)}'
        )
    # Built as MegDetSyncBN or converted by name, some are left out on purpose.
    left_out = convert_bn is True and report.others
    missed = report.in_eval or not ours or left_out
    print_log(
        '; '.join(lines) + '.',
        logger='current',
        level=logging.WARNING
        if missed and (convert_bn or ours)
        else logging.INFO,
    )
