# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Private names of torch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn


@torch.no_grad()
def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors in place, by few launches on a GPU."""
    if targets:
        torch._foreach_copy_(targets, sources)


@torch.no_grad()
def lerp_all(
    targets: Sequence[Tensor], ends: Sequence[Tensor], weight: float
) -> None:
    """Move tensors in place towards others, by few launches on a GPU."""
    if targets:
        torch._foreach_lerp_(targets, ends, weight)


@torch.no_grad()
def maximum_all(targets: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Take elementwise maxima in place, by few launches on a GPU."""
    if targets:
        torch._foreach_maximum_(targets, others)


_Function = TypeVar('_Function', bound=Callable)


def outside_graphs(function: _Function) -> _Function:
    """Keep a function, and what it calls, out of ``torch.compile``'s graphs.

    As ``torch.compiler.disable``, which imports the compiler (for seconds) as
    it decorates. This waits until somebody else has.
    """
    from torch._compile import _disable_dynamo

    excluded = _disable_dynamo(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        if 'torch._dynamo' in sys.modules:
            return excluded(*args, **kwargs)
        return function(*args, **kwargs)

    _skip_frame(call.__code__)
    return call


def inlined_only(function: _Function) -> _Function:
    """Let ``torch.compile`` trace a function within its caller or not at all.

    Dynamo traces the function's own frame too where its caller's graph breaks
    inside it, and so breaks there a second time.
    """
    _skip_frame(function.__code__)
    return function


def _skip_frame(code: CodeType) -> None:
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:
        # An older torch: a compiled graph breaks once more.
        return
    strategy = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT)
    set_code_exec_strategy(code, strategy)


def is_low_rank(model: nn.Module) -> bool:
    """Whether a DDP model sends its gradients through PowerSGD."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
        PowerSGDState,
    )

    hooks = getattr(model, '_comm_hooks', ())
    return any(isinstance(state, PowerSGDState) for _, state in hooks)


def default_store() -> Any:
    """Return the store by which the ranks met.

    ``init_process_group`` makes it and has no public name for it. Ranks tell
    there where they are, without a collective (``RankWatchHook``).
    """
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def copy_versions(target: dict, source: dict) -> None:
    """Give a state_dict the modules' versions that another one carries.

    ``load_state_dict`` passes them to the modules. Without them modules take
    the state for one of their first version, and convert it.
    """
    if hasattr(source, '_metadata'):
        target._metadata = source._metadata
