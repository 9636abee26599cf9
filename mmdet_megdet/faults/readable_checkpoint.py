# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A checkpoint is written that torch's safe loading then refuses to read.

What it is about to hold is put into plain types, and what has no such form is
refused, before training if it is known then: :class:`ReadableCheckpointHook`.
"""

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
from ..runtime import NUMPY_TYPE_CODES
from ..upstream.torch_names import copy_versions

# What torch's safe loading reads without a word.
_DICTS = (dict, OrderedDict, Counter)
_LEAVES = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.Tensor,
    torch.nn.Parameter,
    torch.dtype,
    torch.device,
)
_SEQUENCES = (list, tuple, set, torch.Size)
# What other types become: a subclass's value as its base's. (Not by str(),
# which an Enum has as it likes.)
_PLAIN_SEQUENCES: tuple[tuple[Any, Callable[[list], Any]], ...] = (
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
    """Write checkpoints that torch's safe loading reads back.

    Raises:
        CheckpointError: If it has no such form: before training on every
            rank, ahead of a writing on the rank that writes.
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
    """Return a value in types that torch's safe loading reads.

    Containers are made anew, tensors and arrays of numbers stay themselves.

    Raises:
        CheckpointError: If something in it has no such form; it names
            ``path``, the value's place.
    """
    kind = type(value)
    if kind in _LEAVES or _is_numeric(value):
        return value
    if isinstance(value, Mapping):
        return _plain_mapping(value, path)
    if isinstance(value, np.ndarray):
        return readable(value.tolist(), path)
    for base, made in _PLAIN_SEQUENCES:
        if isinstance(value, base):
            items = [readable(v, f'{path}[{i}]') for i, v in enumerate(value)]
            return kind(items) if kind in _SEQUENCES else made(items)
    for base, made in _PLAIN:
        if isinstance(value, base):
            return made(value)
    if kind is HistoryBuffer:
        # Its methods may be somebody's own.
        readable(value.__getstate__(), path)
    elif not _reads_back(value):
        raise CheckpointError(
            f'neither --resume nor tools/test.py could read a checkpoint with '
            f'{path} back, which is {kind.__module__}.{kind.__qualname__} '
            f'({value!r:.60}). Store numbers, text, lists, dicts, tensors or '
            'NumPy arrays of numbers there, or keep it out of checkpoints '
            '(of a message hub by update_info(..., resumed=False)).'
        )
    return value


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
        and value.dtype.char in NUMPY_TYPE_CODES
        and type(value).__module__ == 'numpy'
        and not isinstance(value, np.matrix | np.memmap | np.recarray)
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
