# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What torch's safe loading is told to accept beyond tensors and containers.

Exactly what MMEngine's own checkpoints consist of: its log buffers, numpy's
numbers and arrays, ConfigDict, and the functions that OneCycleLR keeps in its
state. Nothing among it runs a file's code.
"""

from __future__ import annotations

import pickle
from types import FunctionType

import numpy as np
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler import OneCycleParamScheduler

from ..upstream.mmengine_names import annealing_functions

# Boolean, integer and floating point; no object, text or record arrays.
NUMPY_TYPE_CODES = '?bhilqBHILQefdg'


class OneCycleName:
    """Stands for the scheduler's class, which a file could call, by name."""


def named_attribute(owner: object, name: str) -> FunctionType:
    """Stand in for ``builtins.getattr`` while a checkpoint is unpickled.

    A pickled :class:`HistoryBuffer` names its statistics (``min``, ``mean``,
    ...) as ``getattr(HistoryBuffer, 'min')``; OneCycleLR its annealing in the
    same way. Only those, and public methods that HistoryBuffer itself
    defines, are served.

    Args:
        owner (object): Object whose attribute the file asks for.
        name (str): Name of the attribute.

    Returns:
        FunctionType: The method, unbound.

    Raises:
        pickle.UnpicklingError: If the file asks for anything else.
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


def allowed_globals() -> list:
    """Return the entries for :func:`torch.serialization.add_safe_globals`."""
    reconstruct = np.empty(0).__reduce__()[0]
    scalar = np.float64(0).__reduce__()[0]
    dtype_classes = {type(np.dtype(code)) for code in NUMPY_TYPE_CODES}
    # bytes: how an empty array is written.
    allowed = [HistoryBuffer, np.ndarray, np.dtype, *dtype_classes, bytes]
    allowed.append((named_attribute, 'builtins.getattr'))
    # Written as the call of its class with a dict: read as that dict.
    allowed.append((dict, _path(ConfigDict)))
    allowed.append((OneCycleName, _path(OneCycleParamScheduler)))
    # numpy 2 renamed the module; either writes files that the other reads.
    for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):
        allowed.append((reconstruct, f'{module}._reconstruct'))
        allowed.append((scalar, f'{module}.scalar'))
    return allowed


def _path(kind: type) -> str:
    return f'{kind.__module__}.{kind.__qualname__}'
