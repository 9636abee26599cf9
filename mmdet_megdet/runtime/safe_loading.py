# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Resuming and testing one's own checkpoints under torch's safe loading.

Stock MMEngine 0.10.7 cannot read back under torch 2.6 what it wrote itself.
Importing this module allows exactly what MMEngine's checkpoints consist of,
and makes its loaders say clearly what they refuse. They no longer hand on the
configs in a checkpoint, which MMEngine would execute.
"""

from __future__ import annotations

import functools
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler import OneCycleParamScheduler
from mmengine.runner.checkpoint import CheckpointLoader

from ..errors import CheckpointError, NotResumableError
from ..upstream.mmengine_names import (
    annealing_functions,
    checkpoint_loaders,
    load_as_torch_does,
)
from ..upstream.torch_names import copy_versions

# Boolean, integer and floating point; no object, text or record arrays.
_NUMPY_TYPE_CODES = '?bhilqBHILQefdg'
# torch's own switch, for every torch.load that does not state `weights_only`.
_TRUST_VARIABLE = 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'
# Under which MMEngine finds texts to execute, in the order of their worth.
_CONFIG_KEYS = ('cfg', 'config')
# What a resumed run asks its checkpoint for.
_OF_TRAINING = ('meta', 'message_hub', 'epoch', 'iter')


def trust_checkpoints() -> None:
    """Let this process and its children unpickle, and so run, anything."""
    os.environ[_TRUST_VARIABLE] = '1'


class OneCycleName:
    """Stand in for OneCycleLR's class, so that a checkpoint cannot call it."""


def named_attribute(owner: object, name: str) -> FunctionType:
    """Stand in for ``builtins.getattr`` while a checkpoint is unpickled.

    A pickled :class:`HistoryBuffer` names its statistics by it, OneCycleLR its
    annealing. Methods that they define for that are served, no more.
    """
    served: dict = {}
    if owner is HistoryBuffer and not str(name).startswith('_'):
        served = dict(vars(HistoryBuffer))
    elif owner is OneCycleName:
        served = annealing_functions()
    method = served.get(name)
    if isinstance(method, FunctionType):
        return method
    raise pickle.UnpicklingError(
        f'getattr({getattr(owner, "__qualname__", type(owner))}, {name!r}): '
        "only HistoryBuffer's own public methods are allowed"
    )


def _allowed_globals() -> list:
    """Return the entries for :func:`torch.serialization.add_safe_globals`."""
    reconstruct = np.empty(0).__reduce__()[0]
    scalar = np.float64(0).__reduce__()[0]
    dtype_classes = {type(np.dtype(code)) for code in _NUMPY_TYPE_CODES}
    # bytes: how an empty array is written.
    allowed = [HistoryBuffer, np.ndarray, np.dtype, *dtype_classes, bytes]
    stand_ins: dict[type, type] = {OneCycleParamScheduler: OneCycleName}
    stand_ins[ConfigDict] = dict  # written as the call of its class with one
    for kind, stand_in in stand_ins.items():
        allowed.append((stand_in, f'{kind.__module__}.{kind.__qualname__}'))
    allowed.append((named_attribute, 'builtins.getattr'))
    # numpy 2 renamed the module; either writes files that the other reads.
    for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):
        allowed.append((reconstruct, f'{module}._reconstruct'))
        allowed.append((scalar, f'{module}.scalar'))
    return allowed


class LoadedCheckpoint(dict):
    """A loaded checkpoint, or a part of it, without the config stored in it.

    :attr:`config_text` has that, to be parsed as data. Asking for what only a
    training's checkpoint has, where it is missing, says so.
    """

    def __init__(self, content: dict, source: str) -> None:
        # Not by its own methods, which a file can hide by attributes.
        super().__init__(dict.items(content))
        self.source = source
        self.config_text: str | None = None
        copy_versions(self, content)

    def __missing__(self, key: str) -> None:
        if key not in _OF_TRAINING:
            raise KeyError(key)
        raise NotResumableError(
            f'{self.source} cannot be resumed from: it has no {key!r}. It '
            'holds weights alone, or MMDetection 2.x wrote it: leave --resume '
            f'out, and start from --cfg-options load_from={self.source}'
        )

    def __reduce__(self) -> tuple:
        """Write as what torch's safe loading reads."""
        return OrderedDict, (), None, None, iter(self.items())


def _without_configs(content: Any, source: str) -> Any:
    """Take the stored configs out of what a file holds, if it is a dict."""
    if not isinstance(content, dict):
        return content
    checkpoint = LoadedCheckpoint(content, source)
    hub: dict = {}
    if isinstance(checkpoint.get('message_hub'), dict):
        hub = LoadedCheckpoint(checkpoint['message_hub'], source)
        checkpoint['message_hub'] = hub
    texts = []
    for holder, name in (
        (checkpoint, 'meta'),
        (hub, 'runtime_info'),
        (hub, 'resumed_keys'),
    ):
        if isinstance(holder.get(name), dict):
            part = holder[name] = LoadedCheckpoint(holder[name], source)
            texts += [part.pop(key, None) for key in _CONFIG_KEYS]
    found = (text for text in texts if type(text) is str)
    checkpoint.config_text = next(found, None)
    return checkpoint


def _explained(loader: Callable) -> Callable:
    """Make one of MMEngine's checkpoint loaders safe, its errors clear."""

    @functools.wraps(loader)
    def load(filename: str, map_location: Any = None, **kwargs: Any) -> Any:
        path = os.path.expanduser(filename)
        try:
            content = loader(filename, map_location=map_location, **kwargs)
        except Exception as error:
            if _is_refusal(error):
                raise CheckpointError(
                    f'{filename} holds {_refused(path, error)}, which '
                    "MMEngine's checkpoints do not need; nothing of it was "
                    'executed. If you trust its origin, pass '
                    '--trust-checkpoint to tools/train.py or tools/test.py, '
                    f'or set {_TRUST_VARIABLE}=1.'
                ) from error
            absent = isinstance(error, OSError) and not os.path.isfile(path)
            if absent or isinstance(error, ImportError):
                raise
            said = str(error).strip() or type(error).__name__
            raise CheckpointError(
                f'{filename} is not a whole checkpoint '
                f'({said.splitlines()[-1]}). Copy or download it again, or '
                'resume from an earlier one.'
            ) from error
        return _without_configs(content, filename)

    return load


def _is_refusal(error: Exception) -> bool:
    """Return whether torch refused a content, not: met no pickle."""
    refusals = ('GLOBAL', 'getattr(', 'Trying to call', 'Can only')
    return isinstance(error, pickle.UnpicklingError) and any(
        text in str(error) for text in refusals
    )


def _refused(path: str, error: Exception) -> str:
    """Name what torch refused: all of it where the file can be listed."""
    if os.path.isfile(path) and zipfile.is_zipfile(path):
        listed = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        if listed:
            return ', '.join(sorted(listed))
    reason = str(error).split('WeightsUnpickler error:')[-1].strip()
    return reason.split('\n')[0].split(' was not an allowed')[0]


torch.serialization.add_safe_globals(_allowed_globals())
load_as_torch_does()
for _prefix, _loader in checkpoint_loaders().items():
    _safe = _explained(_loader)
    CheckpointLoader.register_scheme(_prefix, loader=_safe, force=True)
