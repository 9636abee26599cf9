# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Any model's BatchNorm to MegDetSyncBN, and back to plain BatchNorm.

A layer is converted by giving the object another class, as PyTorch's lazy
modules do. So parameters, buffers and hooks stay, and whoever holds the layer
(an optimizer, a second parent, a list of its own) goes on holding it.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple, TypeVar

import torch.distributed as dist
from torch import nn
from torch.nn.parameter import is_lazy

from ..errors import ConfigError
from ..recipe import check_bn_size
from .groups import world_size
from .layer import MegDetSyncBN

_PLAIN = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
# torch's base class of every BatchNorm.
_BASES = MegDetSyncBN.__bases__

# It has another base: without importing mmcv only its name can tell.
_MMCV_SYNC_BN = 'mmcv.ops.sync_bn.SyncBatchNorm'

# What nn.SyncBatchNorm and mmcv's keep besides BatchNorm's own attributes.
_SYNC_ATTRIBUTES = ('process_group', 'group', 'group_size', 'stats_mode')

# What a subclass may define and still normalise as its base does.
_HARMLESS = {
    *vars(type('Empty', (), {})),
    '__annotations__',
    '__constants__',
    '__init__',
    '__parameters__',
    '__repr__',
    '_abbr_',
    '_check_input_dim',
    'extra_repr',
}

_Model = TypeVar('_Model', bound=nn.Module)


class BatchNormReport(NamedTuple):
    """The BatchNorm layers of a model, by name.

    Attributes:
        synced (list[str]): ``MegDetSyncBN`` in training mode.
        in_eval (list[str]): ``MegDetSyncBN`` in eval mode: it normalises by
            its running statistics and does not synchronise.
        frozen (list[str]): Those of ``synced`` of whose weight and bias none
            is trained; they synchronise all the same.
        others (dict[str, str]): Any other BatchNorm, with its class's name.
    """

    synced: list[str]
    in_eval: list[str]
    frozen: list[str]
    others: dict[str, str]


def report_batch_norm(model: nn.Module) -> BatchNormReport:
    """Tell which BatchNorm layers of a model synchronise.

    Ask after ``model.train()``, which is where mmdet's backbones put layers
    into eval mode (``norm_eval``, ``frozen_stages``).
    """
    report = BatchNormReport([], [], [], {})
    for name, layer in model.named_modules():
        if isinstance(layer, MegDetSyncBN):
            (report.synced if layer.training else report.in_eval).append(name)
            trained = [p.requires_grad for p in layer.parameters()]
            if layer.training and trained and not any(trained):
                report.frozen.append(name)
        elif _is_batch_norm(layer):
            report.others[name] = type(layer).__name__
    return report


def convert_batch_norm(model: _Model, bn_size: int | None = None) -> _Model:
    """Make every BatchNorm of a model a :class:`MegDetSyncBN`, in place.

    ``nn.BatchNorm1d``, ``2d`` and ``3d``, ``nn.SyncBatchNorm``, mmcv's
    ``SyncBN`` and ``MMSyncBN``, and subclasses that only change defaults or
    the check of the input's shape. Each layer stays the same object with the
    same parameters, buffers, settings, mode and hooks; a layer used in
    several places stays one. An optimizer built before stays valid. Layers
    that are ``MegDetSyncBN`` already keep their own ``bn_size``.
    InstanceNorm and mmdet's FrozenBatchNorm2d are no BatchNorm.

    A subclass with behaviour of its own (a fused activation, say) is left as
    it is, with a warning that names it.

    All ranks have to call all synchronised layers. Where a part of the model
    may leave some out on one rank (mmdet's RoI heads do without RoIs),
    convert the other parts alone: ``model.backbone``, ``model.neck``.

    Under MMEngine's Runner with a launcher,
    ``model_wrapper_cfg=dict(type='MegDetDistributedDataParallel',
    convert_bn=True)`` calls this. Without a launcher the Runner applies no
    wrapper: this function is the way, before or after the optimizer is
    built, and before or after DDP wraps the model.

    Args:
        model (nn.Module): A model, or a single layer.
        bn_size (int, optional): Number of images over which the converted
            layers take their statistics. Defaults to None: those of all
            ranks.

    Returns:
        nn.Module: ``model`` itself.

    Raises:
        ConfigError: If a layer is lazy and has not seen an input yet, or
            synchronises over a process group of its own and ``bn_size`` does
            not say what that becomes. Nothing is changed then.

    Examples:
        >>> model = convert_batch_norm(model, bn_size=32)
        >>> resolve_bn_groups(model, images_per_gpu=4)
    """
    check_bn_size(bn_size)
    layers, left = [], []
    for name, layer in model.named_modules():
        if not _is_batch_norm(layer) or isinstance(layer, MegDetSyncBN):
            continue
        _check_convertible(name, layer, bn_size)
        own = _own_behaviour(layer)
        if own:
            left.append(f'{name} ({type(layer).__name__}: {", ".join(own)})')
        else:
            layers.append(layer)
    for layer in layers:
        _become_synced(layer, bn_size)
    if left:
        warnings.warn(
            'Left as they are and not synchronised, because their class has '
            'behaviour of its own that MegDetSyncBN would not have: '
            f'{"; ".join(left)}. Replace them by a plain BatchNorm and a '
            'module for the rest to have them converted.',
            stacklevel=2,
        )
    return model


def revert_to_batch_norm(model: _Model, dims: int = 2) -> _Model:
    """Make every :class:`MegDetSyncBN` a plain BatchNorm again, in place.

    For export, for serving without this package, for tools that look for
    ``nn.BatchNorm2d``. (mmcv's ``fuse_conv_bn`` needs no reverting.) As in
    :func:`convert_batch_norm` layers stay the same objects; in eval mode
    they compute the same, bit for bit.

    A layer that was converted becomes what it was: BatchNorm1d, 2d or 3d.
    ``MegDetSyncBN`` itself takes inputs of any dimension, so for a layer
    that was built as such, or was a SyncBatchNorm, ``dims`` says it. A wrong
    one cannot pass unnoticed: plain BatchNorm refuses other inputs. Where a
    model has such layers of several dimensions, call this for its parts
    first, then for the rest.

    Args:
        model (nn.Module): A model, or a single layer.
        dims (int): 1, 2 or 3, for layers that do not know better. Defaults
            to 2.

    Returns:
        nn.Module: ``model`` itself.

    Raises:
        ConfigError: If ``dims`` is something else.

    Examples:
        >>> revert_to_batch_norm(detector.voxel_encoder, dims=1)
        >>> revert_to_batch_norm(detector)
    """
    if dims not in _PLAIN:
        raise ConfigError(
            f'dims={dims!r} must be 1, 2 or 3, for nn.BatchNorm1d, 2d or 3d.'
        )
    added = vars(MegDetSyncBN(1)).keys() - vars(nn.BatchNorm2d(1)).keys()
    for layer in model.modules():
        if isinstance(layer, MegDetSyncBN):
            plain = vars(layer).pop('_plain_class', _PLAIN[dims])
            for name in added:
                vars(layer).pop(name, None)
            layer.__class__ = plain
    return model


def _is_batch_norm(layer: nn.Module) -> bool:
    return isinstance(layer, _BASES) or _is_mmcv_sync_bn(type(layer))


def _is_mmcv_sync_bn(cls: type) -> bool:
    return f'{cls.__module__}.{cls.__qualname__}' == _MMCV_SYNC_BN


def _check_convertible(
    name: str, layer: nn.Module, bn_size: int | None
) -> None:
    if any(map(is_lazy, [*layer.parameters(), *layer.buffers()])):
        raise ConfigError(
            f'{name} is a {type(layer).__name__} that does not know its '
            'channels yet: run the model once, then convert it.'
        )
    group = vars(layer).get('process_group') or vars(layer).get('group')
    if group is None or bn_size is not None or not dist.is_initialized():
        return
    ranks, all_ranks = dist.get_world_size(group), world_size()
    if ranks != all_ranks:
        raise ConfigError(
            f'{name} is a {type(layer).__name__} that synchronises over a '
            f'process group of its own, of {ranks} of {all_ranks} ranks. '
            "MegDetSyncBN's groups come from bn_size: give the number of "
            "images of a group, or set the layer's group to None to "
            'synchronise over all ranks.'
        )


def _own_behaviour(layer: nn.Module) -> list[str]:
    # What its class, or the layer alone, overrides or adds.
    patched = {
        name
        for name, value in vars(layer).items()
        if callable(value) and hasattr(type(layer), name)
    }
    defined = {
        name
        for cls in type(layer).__mro__
        if not cls.__module__.startswith(('torch.nn.modules.', 'builtins'))
        and not _is_mmcv_sync_bn(cls)
        for name in vars(cls)
    }
    return sorted(patched | (defined - _HARMLESS))


def _become_synced(layer: nn.Module, bn_size: int | None) -> None:
    plain = [c for c in _PLAIN.values() if isinstance(layer, c)]
    for name in _SYNC_ATTRIBUTES:
        vars(layer).pop(name, None)
    layer.__class__ = MegDetSyncBN
    for name, value in vars(MegDetSyncBN(1, bn_size=bn_size)).items():
        vars(layer).setdefault(name, value)
    if plain:
        vars(layer)['_plain_class'] = plain[0]
