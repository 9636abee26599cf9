# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A checkpoint is written that torch's safe loading then refuses to read."""

from __future__ import annotations

import io
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..errors import CheckpointError
from ..upstream.torch_names import copy_versions

# What torch's safe loading reads as it is.
_DICTS = (dict, OrderedDict, Counter)
_LEAVES = (
    bool,
    int,
    float,
    str,
    bytes,
    type(None),
    torch.Size,
    torch.Tensor,
    torch.nn.Parameter,
)
# What it does not read becomes a value of its base. (Not by str(), which an
# Enum has as it likes.)
_SEQUENCES: tuple[tuple[Any, Callable[[list], Any]], ...] = (
    (tuple, tuple),
    (set | frozenset, set),
    (list | deque | range, list),
)
_PLAIN: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (PurePath, str),
    (str, str.__str__),
    (bytes, bytes),
    (int, int),
    (float, float),
)


@HOOKS.register_module()
class ReadableCheckpointHook(Hook):
    """Write checkpoints in plain types, which torch's safe loading reads.

    Raises:
        CheckpointError: If something has no such form: before training on
            every rank, ahead of a writing on the rank that writes.
    """

    # Behind what adds to a checkpoint.
    priority = 'LOWEST'

    def before_train(self, runner: Runner) -> None:
        """Check what a checkpoint will hold, as far as it is known."""
        dataset = runner.train_dataloader.dataset
        schedulers = runner.param_schedulers or []
        if isinstance(schedulers, dict):
            schedulers = [s for each in schedulers.values() for s in each]
        readable(
            dict(
                meta=dict(dataset_meta=getattr(dataset, 'metainfo', None)),
                message_hub=runner.message_hub.state_dict(),
                optimizer=runner.optim_wrapper.state_dict(),
                param_schedulers=[s.state_dict() for s in schedulers],
            )
        )

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Put the checkpoint's values into plain types."""
        plain = readable(checkpoint)
        checkpoint.clear()
        checkpoint.update(plain)


def readable(value: Any, path: str = '') -> Any:
    """Return a value, whose place is ``path``, in types that are read back.

    Containers are made anew, tensors and arrays of numbers stay themselves.
    """
    kind = type(value)
    if kind in _LEAVES or _is_numeric(value):
        return value
    if kind is HistoryBuffer:  # long ones: without copies of their numbers
        readable(value.__getstate__(), path)
        return value
    if isinstance(value, Mapping):
        return _plain_mapping(value, path)
    for base, made in _SEQUENCES:
        if isinstance(value, base):
            items = [readable(v, f'{path}[{i}]') for i, v in enumerate(value)]
            return made(items)
    if _reads_back(value):
        return value
    if isinstance(value, np.ndarray):
        return readable(value.tolist(), path)
    for base, made in _PLAIN:
        if isinstance(value, base):
            return made(value)
    raise CheckpointError(
        f'neither --resume nor tools/test.py could read a checkpoint with '
        f'{path} back, which is {kind.__module__}.{kind.__qualname__} '
        f'({value!r:.60}). Store numbers, text, lists, dicts, tensors or '
        'NumPy arrays of numbers there, or keep it out of checkpoints (of a '
        'message hub by update_info(..., resumed=False)).'
    )


def _plain_mapping(value: Any, path: str) -> dict:
    prefix = f'{path}.' if path else ''
    items = {
        readable(key, f'the key {key!r} of {path}'): readable(
            item, f'{prefix}{key}'
        )
        for key, item in value.items()
    }
    if type(value) not in _DICTS:
        return items
    # Of a model's state_dict, whose versions are an attribute.
    plain = type(value)(items)
    copy_versions(plain, value)
    return plain


def _is_numeric(value: Any) -> bool:
    return (
        isinstance(value, np.ndarray | np.generic)
        and value.dtype.kind in 'biuf'  # as safe_loading allows
        and type(value) in (np.ndarray, value.dtype.type)
    )


def _reads_back(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, map_location='cpu', weights_only=True)
    except Exception:
        return False
    return True
