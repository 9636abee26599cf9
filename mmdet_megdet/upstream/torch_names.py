# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Private names of torch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import CodeType
from typing import TypeVar

import torch
import torch.distributed as dist
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


def in_recomputation() -> bool:
    """Return whether autograd runs backward in this thread.

    A forward in that state is the second of activation checkpointing,
    reentrant or not: what the first one noted must not be noted again. What
    ``torch.compile`` traces is no such forward: the compiler recomputes
    without calling Python.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._current_graph_task_id() != -1


def group_timeout(
    group: dist.ProcessGroup, device: torch.device
) -> timedelta | None:
    """Return the timeout of a group's collectives; None if it tells none.

    ``dist.new_group`` does not take it over from the default group.

    Args:
        group (ProcessGroup): The group.
        device (torch.device): Where the tensors lie; a group may have
            another backend for each kind of device.
    """
    try:
        return group._get_backend(device).options._timeout
    except (RuntimeError, AttributeError):
        # A group written in Python has no backend; some backends have no
        # options, or none that tell a timeout.
        return None


def small_nccl_options(
    most_blocks: int, timeout: timedelta | None
) -> object | None:
    """Return NCCL's options for a communicator of little memory.

    Args:
        most_blocks (int): Thread blocks that a collective may take.
        timeout (timedelta, optional): That of the group to be made; torch
            warns if the options have another.

    Returns:
        object or None: For ``dist.new_group(pg_options=...)``; None where
        this torch or its NCCL has no such setting.
    """
    options = dist.ProcessGroupNCCL.Options()
    # Builds for an NCCL without communicator settings have none.
    config = getattr(options, 'config', None)
    if config is None or not hasattr(config, 'max_ctas'):
        return None
    config.max_ctas = most_blocks
    if timeout is not None:
        options._timeout = timeout
    return options
