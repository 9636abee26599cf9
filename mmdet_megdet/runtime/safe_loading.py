# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Resuming and testing one's own checkpoints under torch's safe loading.

Since torch 2.6 ``torch.load`` unpickles tensors and plain containers only,
unless it is told to trust the file, and so stock MMEngine 0.10.7 cannot read
back what it wrote itself. Importing this module allows exactly what MMEngine's
checkpoints consist of, and makes its loaders say clearly what they refuse.

Neither a file's code nor its text ever runs: MMEngine would execute the
configs that a checkpoint holds (in ``Runner.resume``, in its inferencers), so
its loaders do not hand them on any more.
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
NUMPY_TYPE_CODES = '?bhilqBHILQefdg'
# torch's own switch. It reaches every torch.load of the process that does
# not state `weights_only` itself, which is how MMEngine calls it.
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

    A pickled :class:`HistoryBuffer` names its statistics as
    ``getattr(HistoryBuffer, 'min')``, OneCycleLR its annealing in the same
    way. Public methods that they define themselves are served, no more.
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
    dtype_classes = {type(np.dtype(code)) for code in NUMPY_TYPE_CODES}
    # bytes: how an empty array is written.
    allowed = [HistoryBuffer, np.ndarray, np.dtype, *dtype_classes, bytes]
    allowed.append((named_attribute, 'builtins.getattr'))
    # Written as the call of its class with a dict: read as that dict.
    for kind, stand_in in (
        (ConfigDict, dict),
        (OneCycleParamScheduler, OneCycleName),
    ):
        allowed.append((stand_in, f'{kind.__module__}.{kind.__qualname__}'))
    # numpy 2 renamed the module; either writes files that the other reads.
    for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):
        allowed.append((reconstruct, f'{module}._reconstruct'))
        allowed.append((scalar, f'{module}.scalar'))
    return allowed


class LoadedCheckpoint(dict):
    """A loaded checkpoint (or its ``meta``) without the config stored in it.

    Contract: it holds no stored config under any key that MMEngine reads one
    from; :attr:`config_text` has it, to be parsed as data. Asking for what
    only a training's checkpoint has, where it is missing, says so.
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
            'holds weights alone, or MMDetection 2.x wrote it. To start a new '
            'training from its weights, load_from is meant: leave --resume '
            f'(resume) out and set --cfg-options load_from={self.source}'
        )

    def __reduce__(self) -> tuple:
        """Write as what torch's safe loading reads."""
        return OrderedDict, (), None, None, iter(self.items())


def _without_configs(content: Any, source: str) -> Any:
    """Take the stored configs out of what a file holds, if it is a dict."""
    if not isinstance(content, dict):
        return content
    checkpoint = LoadedCheckpoint(content, source)
    texts = []
    if isinstance(checkpoint.get('meta'), dict):
        meta = LoadedCheckpoint(checkpoint['meta'], source)
        texts += [meta.pop(key, None) for key in _CONFIG_KEYS]
        checkpoint['meta'] = meta
    if isinstance(checkpoint.get('message_hub'), dict):
        hub = dict(dict.items(checkpoint['message_hub']))
        for part in ('runtime_info', 'resumed_keys'):
            if isinstance(hub.get(part), dict):
                hub[part] = dict(dict.items(hub[part]))
                texts += [hub[part].pop(key, None) for key in _CONFIG_KEYS]
        checkpoint['message_hub'] = hub
    texts = [text for text in texts if type(text) is str]
    checkpoint.config_text = texts[0] if texts else None
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
                    "MMEngine's own checkpoints do not need. Nothing of it "
                    'was executed. Only if you trust the origin of this file, '
                    'pass --trust-checkpoint to tools/train.py or '
                    'tools/test.py; in a script of your own, set '
                    f'{_TRUST_VARIABLE}=1.'
                ) from error
            absent = isinstance(error, OSError) and not os.path.isfile(path)
            if absent or isinstance(error, ImportError):
                raise
            said = str(error).strip() or type(error).__name__
            raise CheckpointError(
                f'{filename} is not a whole checkpoint: it is truncated, '
                'damaged, or no file that torch.save wrote. Copy or download '
                'it again, or resume from an earlier one. (torch says: '
                f'{said.splitlines()[-1]})'
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


def _register() -> None:
    torch.serialization.add_safe_globals(_allowed_globals())
    load_as_torch_does()
    for prefix, loader in checkpoint_loaders().items():
        CheckpointLoader.register_scheme(
            prefix, loader=_explained(loader), force=True
        )


_register()
