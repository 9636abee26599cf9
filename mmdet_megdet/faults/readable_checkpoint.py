# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A checkpoint is written that torch's safe loading then refuses to read.

What it is about to hold is put into plain types, and what has no such form is
refused: before training if it is known then, and ahead of the first writing:
:class:`ReadableCheckpointHook`.
"""

from __future__ import annotations

import io
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
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
from ..text import some
from ..upstream.torch_names import copy_versions

# What torch's safe loading reads without a word.
_DICTS = (dict, OrderedDict, Counter)
_SEQUENCES = (list, tuple, set, torch.Size)
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
# How the value of other types is taken out, by the first type that fits: a
# subclass's value as its base's. (Not by str(), which an Enum has as it
# likes.)
_PLAIN: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (PurePath, str),
    (str, str.__str__),
    (bytes, bytes),
    (int, int),
    (float, float),
)
_PLAIN_SEQUENCES = ((tuple, tuple), (set, set), (frozenset, set))
_REMEDIES = {
    'meta.dataset_meta': "set it otherwise in the data set's metainfo",
    'message_hub.runtime_info': 'store it with update_info(..., '
    'resumed=False), which keeps it out of checkpoints',
    'param_schedulers': "leave it out of the scheduler's state_dict",
    'optimizer': "leave it out of the optimizer's state_dict",
}


@HOOKS.register_module()
class ReadableCheckpointHook(Hook):
    """Write checkpoints that torch's safe loading reads back.

    Contract: what a checkpoint is about to hold is put into plain types
    (ConfigDict becomes dict, a NumPy string text, and so on; see
    :func:`plain`). What has no such form is refused, by key, type and
    remedy: before training what is known then (metainfo, message hub,
    schedulers, optimizer), and ahead of each writing, the first one included,
    what has been added since.

    Raises:
        CheckpointError: Before training on every rank; ahead of a writing on
            the rank that writes.

    Examples:
        >>> default_hooks = dict(
        ...     readable_checkpoint=dict(type='ReadableCheckpointHook'))
    """

    # Behind what adds to a checkpoint.
    priority = 'LOWEST'

    def before_train(self, runner: Runner) -> None:
        """Check what is known."""
        dataset = runner.train_dataloader.dataset
        schedulers = runner.param_schedulers or []
        if not isinstance(schedulers, dict):
            schedulers = {'': schedulers}
        content = dict(
            meta=dict(dataset_meta=getattr(dataset, 'metainfo', None)),
            message_hub=runner.message_hub.state_dict(),
            optimizer=runner.optim_wrapper.state_dict(),
            param_schedulers={
                name: [scheduler.state_dict() for scheduler in every]
                for name, every in schedulers.items()
            },
        )
        check_readable(plain(content), 'before training')

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Make it plain, and check it."""
        for key, value in checkpoint.items():
            checkpoint[key] = plain(value)
        check_readable(checkpoint, 'nothing was written')


def plain(value: Any) -> Any:
    """Return the same in types that torch's safe loading reads.

    ConfigDict and other mappings become dicts; subclasses of list, tuple,
    set, str, bytes, int and float become these, deques and ranges lists;
    paths and NumPy's strings become text. What is readable already is
    returned itself, and so is what has no such form.
    """
    if type(value) in _LEAVES or isinstance(value, HistoryBuffer):
        return value
    if isinstance(value, np.ndarray | np.generic) and _is_numeric(value):
        return value
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return _plain_mapping(value)
    if isinstance(value, list | tuple | set | frozenset | deque | range):
        return _plain_sequence(value)
    for kind, convert in _PLAIN:
        if isinstance(value, kind):
            return convert(value)
    return value


def _plain_mapping(value: Any) -> Any:
    items = {plain(key): plain(item) for key, item in value.items()}
    if type(value) not in _DICTS:
        return items
    if all(
        new is old and items[new] is item
        for new, (old, item) in zip(items, value.items(), strict=True)
    ):
        return value
    changed = type(value)(items)
    copy_versions(changed, value)
    return changed


def _plain_sequence(value: Any) -> Any:
    items = [plain(item) for item in value]
    if type(value) in _SEQUENCES and all(
        new is old for new, old in zip(items, value, strict=True)
    ):
        return value
    for kind, made in _PLAIN_SEQUENCES:
        if isinstance(value, kind):
            return made(items)
    return items


def _is_numeric(value: np.ndarray | np.generic) -> bool:
    return (
        value.dtype.char in NUMPY_TYPE_CODES
        and type(value).__module__ == 'numpy'
        and not isinstance(value, np.matrix | np.memmap | np.recarray)
    )


def check_readable(content: Mapping[str, Any], when: str) -> None:
    """Refuse what could not be read back: its key, type and remedy.

    Args:
        content (Mapping[str, Any]): A checkpoint, or parts of one, plain.
        when (str): What is being done, for the message.
    """
    known: dict[int, bool] = {}
    found = [
        f'{path} is {_kind(leaf)} ({_short(leaf)}): {_remedy(path)}'
        for path, leaf in _leaves(content, '')
        if not _reads_back(leaf, known)
    ]
    if found:
        raise CheckpointError(
            f'{when}: neither --resume nor tools/test.py could read this '
            f'checkpoint back: {some(found, 5, "; ")}. A checkpoint may hold '
            'numbers, text, lists, dicts, tensors, and NumPy arrays of '
            'numbers.'
        )


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield what may not be readable, with its place."""
    if type(value) in _DICTS:
        for key, item in value.items():
            yield from _leaves(key, f'the key {key!r} of {path or "it"}')
            yield from _leaves(item, f'{path}.{key}' if path else str(key))
    elif type(value) in _SEQUENCES:
        for index, item in enumerate(value):
            yield from _leaves(item, f'{path}[{index}]')
    elif type(value) is HistoryBuffer:
        for name, item in value.__getstate__().items():
            yield from _leaves(item, f'{path}.{name}')
    elif type(value) not in _LEAVES:
        yield path, value


def _reads_back(leaf: Any, known: dict[int, bool]) -> bool:
    if isinstance(leaf, np.ndarray | np.generic) and _is_numeric(leaf):
        return True
    if id(leaf) not in known:
        file = io.BytesIO()
        try:
            torch.save(leaf, file)
            file.seek(0)
            torch.load(file, map_location='cpu', weights_only=True)
        except Exception:
            known[id(leaf)] = False
        else:
            known[id(leaf)] = True
    return known[id(leaf)]


def _remedy(path: str) -> str:
    for start, remedy in _REMEDIES.items():
        if path.startswith(start):
            return remedy
    return 'store plain values instead, or leave it out'


def _kind(leaf: Any) -> str:
    return f'{type(leaf).__module__}.{type(leaf).__qualname__}'


def _short(leaf: Any) -> str:
    text = repr(leaf)
    return text if len(text) <= 60 else f'{text[:57]}...'
