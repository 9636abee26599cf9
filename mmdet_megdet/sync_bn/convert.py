# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Convert a model's BatchNorm to MegDetSyncBN, and back.

A layer is converted by giving the object another class: parameters, buffers
and hooks stay, and an optimizer or a second parent goes on holding it.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple, TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from ..errors import ConfigError
from ..recipe import check_bn_size
from .layer import MegDetSyncBN

_PLAIN = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}

# Methods that a subclass may have and still normalise as its base does.
_HARMLESS = {'__init__', '__repr__', '_check_input_dim', 'extra_repr'}

_Model = TypeVar('_Model', bound=nn.Module)


class BatchNormReport(NamedTuple):
    """The BatchNorm layers of a model, by name.

    ``MegDetSyncBN`` in training mode and in eval mode, where it does not
    synchronise; and any other BatchNorm, with the name of its class.
    """

    synced: list[str]
    in_eval: list[str]
    others: dict[str, str]


def report_batch_norm(model: nn.Module) -> BatchNormReport:
    """Tell which BatchNorm layers of a model synchronise.

    ``model.train()`` puts those of mmdet's backbones into eval mode.
    """
    report = BatchNormReport([], [], {})
    for name, layer in model.named_modules():
        if isinstance(layer, MegDetSyncBN):
            (report.synced if layer.training else report.in_eval).append(name)
        elif isinstance(layer, _BatchNorm):
            report.others[name] = type(layer).__name__
    return report


def convert_batch_norm(model: _Model, bn_size: int | None = None) -> _Model:
    """Make every BatchNorm of a model a :class:`MegDetSyncBN`, in place.

    A subclass with behaviour of its own (a fused activation, say) is left as
    it is, with a warning. ``MegDetSyncBN`` keeps its own ``bn_size``. All
    ranks have to call all synchronised layers: where a part may leave some
    out (mmdet's RoI heads do without RoIs), convert the other parts alone.

    Args:
        model (nn.Module): A model, or a single layer; it is returned.
        bn_size (int, optional): As :class:`MegDetSyncBN`'s.

    Raises:
        ConfigError: If a layer is lazy and has not seen an input yet, or has
            a process group of its own and ``bn_size`` does not say what that
            becomes. Nothing is changed then.
    """
    check_bn_size(bn_size)
    layers, left = [], []
    for name, kind in report_batch_norm(model).others.items():
        layer = model.get_submodule(name)
        _check_convertible(f'{name} is a {kind}', layer, bn_size)
        own = _own_behaviour(layer)
        if own:
            left.append(f'{name} ({kind}: {", ".join(own)})')
        else:
            layers.append(layer)
    for layer in layers:
        plain = [c for c in _PLAIN.values() if isinstance(layer, c)]
        vars(layer).pop('process_group', None)
        layer.__class__ = MegDetSyncBN
        for name, value in vars(MegDetSyncBN(1, bn_size=bn_size)).items():
            vars(layer).setdefault(name, value)
        if plain:
            vars(layer)['_plain_class'] = plain[0]
    if left:
        warnings.warn(
            f'Not synchronised, because their class has behaviour of its own: '
            f'{"; ".join(left)}. Replace them by a plain BatchNorm and a '
            'module for the rest.',
            stacklevel=2,
        )
    return model


def revert_to_batch_norm(model: _Model, dims: int = 2) -> _Model:
    """Make every :class:`MegDetSyncBN` a plain BatchNorm again, in place.

    For export and serving. In eval mode layers compute the same, bit for bit.
    One that was converted becomes what it was: BatchNorm1d, 2d or 3d.

    Args:
        model (nn.Module): A model, or a single layer; it is returned.
        dims (int): 1, 2 or 3, for layers that were built as ``MegDetSyncBN``
            or were a SyncBatchNorm. Plain BatchNorm refuses inputs of other
            dimensions. Defaults to 2.
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


def _check_convertible(
    which: str, layer: nn.Module, bn_size: int | None
) -> None:
    if any(map(is_lazy, [*layer.parameters(), *layer.buffers()])):
        raise ConfigError(
            f'{which} that does not know its channels yet: run the model '
            'once, then convert it.'
        )
    if bn_size is None and vars(layer).get('process_group') is not None:
        raise ConfigError(
            f'{which} that synchronises over a process group of its own: give '
            'bn_size, or set its process_group to None for all ranks.'
        )


def _own_behaviour(layer: nn.Module) -> list[str]:
    """Return what its class, or the layer alone, overrides or adds."""
    patched = {n for n in vars(layer) if callable(getattr(type(layer), n, 0))}
    defined = {
        name
        for cls in type(layer).__mro__
        if not cls.__module__.startswith(('torch.nn.modules.', 'builtins'))
        for name, value in vars(cls).items()
        if callable(value) or isinstance(value, property)
    }
    return sorted(patched | (defined - _HARMLESS))
