# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Resuming and testing one's own checkpoints under torch's safe loading.

Since torch 2.6 ``torch.load`` unpickles tensors and plain containers only,
unless it is told to trust the file. MMEngine's checkpoints also hold its log
buffers, so stock MMEngine 0.10.7 cannot read back what it wrote itself.
Importing this module allows exactly what those buffers consist of, and makes
MMEngine's loaders say clearly what they refuse. A file's code never runs.
"""

from __future__ import annotations

import functools
import os
import pickle
import zipfile
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner import checkpoint as upstream
from mmengine.runner.checkpoint import CheckpointLoader

# torch's own switch. It reaches every torch.load of the process that does
# not state `weights_only` itself, which is how MMEngine calls it.
_TRUST_VARIABLE = 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'

# Boolean, integer and floating point; no object, text or record arrays.
_NUMPY_TYPE_CODES = '?bhilqBHILQefdg'


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read, or holds what is not to be trusted."""


def trust_checkpoints() -> None:
    """Lets this process unpickle anything that a checkpoint holds.

    Meant for an explicit request of the user (``--trust-checkpoint``): such
    a file can run any code. It applies to every checkpoint that the process
    and its children read from now on, pretrained weights included.
    """
    os.environ[_TRUST_VARIABLE] = '1'


def history_buffer_attribute(owner: object, name: str) -> FunctionType:
    """Stands in for ``builtins.getattr`` while a checkpoint is unpickled.

    A pickled :class:`HistoryBuffer` names its statistics (``min``, ``mean``,
    ...) as ``getattr(HistoryBuffer, 'min')``. Only public methods that the
    class itself defines are served.

    Args:
        owner (object): Object whose attribute the file asks for.
        name (str): Name of the attribute.

    Returns:
        FunctionType: The method, unbound.

    Raises:
        pickle.UnpicklingError: If the file asks for anything else.
    """
    if owner is HistoryBuffer and not str(name).startswith('_'):
        method = vars(HistoryBuffer).get(name)
        if isinstance(method, FunctionType):
            return method
    raise pickle.UnpicklingError(
        f'getattr({getattr(owner, "__qualname__", type(owner))}, {name!r}): '
        "only HistoryBuffer's own public methods are allowed"
    )


def allowed_globals() -> list:
    """What MMEngine's own checkpoints need beyond torch's default list.

    Returns:
        list: Entries for :func:`torch.serialization.add_safe_globals`.
    """
    reconstruct = np.empty(0).__reduce__()[0]
    scalar = np.float64(0).__reduce__()[0]
    dtype_classes = {type(np.dtype(code)) for code in _NUMPY_TYPE_CODES}
    # bytes: how an empty array is written.
    allowed = [HistoryBuffer, np.ndarray, np.dtype, *dtype_classes, bytes]
    allowed.append((history_buffer_attribute, 'builtins.getattr'))
    # numpy 2 renamed the module; either writes files that the other reads.
    for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):
        allowed.append((reconstruct, f'{module}._reconstruct'))
        allowed.append((scalar, f'{module}.scalar'))
    return allowed


def _explained(loader: Callable) -> Callable:
    """Makes one of MMEngine's checkpoint loaders give clear errors."""

    @functools.wraps(loader)
    def load(filename: str, map_location: Any = None, **kwargs) -> Any:
        path = os.path.expanduser(filename)
        try:
            return loader(filename, map_location=map_location, **kwargs)
        except Exception as error:
            if _is_refusal(error):
                raise CheckpointError(
                    f'{filename} holds {_refused(path, error)}, which is not '
                    "on the list that MMEngine's own checkpoints need. "
                    'Nothing of it was executed. Unpickling it can run any '
                    'code: only if you trust the origin of this file, pass '
                    '--trust-checkpoint to tools/train.py or tools/test.py; '
                    f'in a script of your own, set {_TRUST_VARIABLE}=1.'
                ) from error
            if _is_damage(path, error):
                raise CheckpointError(
                    f'{filename} is not a whole checkpoint{_size(path)}: it '
                    'is truncated, damaged, or no file that torch.save '
                    'wrote. Copy or download it again, or resume from an '
                    f'earlier one. (torch says: {_last_line(error)})'
                ) from error
            raise

    return load


def _is_refusal(error: Exception) -> bool:
    """Whether torch refused a content, not: met bytes that are no pickle."""
    refusals = ('GLOBAL', 'getattr(', 'Trying to call', 'Can only')
    return isinstance(error, pickle.UnpicklingError) and any(
        text in str(error) for text in refusals
    )


def _refused(path: str, error: Exception) -> str:
    """Names what torch refused: all of it where the file can be listed."""
    if os.path.isfile(path) and zipfile.is_zipfile(path):
        listed = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        if listed:
            return ', '.join(sorted(listed))
    reason = str(error).split('WeightsUnpickler error:')[-1].strip()
    return reason.split('\n')[0].split(' was not an allowed')[0]


def _is_damage(path: str, error: Exception) -> bool:
    """Whether an error comes from the bytes of the file."""
    if isinstance(
        error, pickle.UnpicklingError | EOFError | UnicodeDecodeError
    ):
        return True
    reasons = ('PytorchStreamReader', 'Invalid magic number')
    if any(text in str(error) for text in reasons):
        return True
    if not os.path.isfile(path):
        return False
    with open(path, 'rb') as file:
        starts_as_zip = file.read(2) == b'PK'
    return starts_as_zip and not zipfile.is_zipfile(path)


def _size(path: str) -> str:
    if not os.path.isfile(path):
        return ''
    return f' ({os.path.getsize(path)} bytes)'


def _last_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def _register() -> None:
    torch.serialization.add_safe_globals(allowed_globals())
    # onedl-mmengine loads with this function, which unpickles without any
    # restriction what torch has refused.
    if hasattr(upstream, '_safe_torch_load'):
        upstream._safe_torch_load = torch.load
    for prefixes, loader in (
        ('', upstream.load_from_local),
        (('http://', 'https://'), upstream.load_from_http),
        (('modelzoo://', 'torchvision://'), upstream.load_from_torchvision),
        (('open-mmlab://', 'openmmlab://'), upstream.load_from_openmmlab),
        ('mmcls://', upstream.load_from_mmcls),
    ):
        CheckpointLoader.register_scheme(
            prefixes, loader=_explained(loader), force=True
        )


_register()
