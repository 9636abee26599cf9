# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Private names of torch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import CodeType
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader


@torch.no_grad()
def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors in place, by few launches on a GPU."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))


@torch.no_grad()
def lerp_all(
    targets: Sequence[Tensor], ends: Sequence[Tensor], weight: float
) -> None:
    """Move tensors in place towards others, by few launches on a GPU."""
    if targets:
        torch._foreach_lerp_(list(targets), list(ends), weight)


@torch.no_grad()
def maximum_all(targets: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Take elementwise maxima in place, by few launches on a GPU."""
    if targets:
        torch._foreach_maximum_(list(targets), list(others))


_Function = TypeVar('_Function', bound=Callable)


def outside_graphs(function: _Function) -> _Function:
    """Keep a function, and what it calls, out of ``torch.compile``'s graphs.

    ``torch.compiler.disable`` would import the compiler, for seconds.
    """
    from torch._compile import _disable_dynamo

    excluded = _disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if 'torch._dynamo' in sys.modules:
            return excluded(*args, **kwargs)
        return function(*args, **kwargs)

    wrapped: Any = call
    _skip_frame(wrapped.__code__)
    return wrapped


def inlined_only(function: _Function) -> _Function:
    """Let ``torch.compile`` trace a function within its caller or not at all.

    Its caller's graph would break twice at a break inside it.
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
    """Return whether a DDP model sends its gradients through PowerSGD."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    kind = powerSGD_hook.PowerSGDState
    hooks = getattr(model, '_comm_hooks', ())
    return any(isinstance(state, kind) for _, state in hooks)


def copy_versions(target: Any, source: Any) -> None:
    """Give a state_dict the modules' versions that another one carries.

    Without them a BatchNorm's state is taken for one of torch 0.4.
    """
    if hasattr(source, '_metadata'):
        target._metadata = source._metadata


def end_workers(loader: DataLoader) -> None:
    """Let go the iterator that keeps a loader's persistent workers."""
    loader._iterator = None


def in_recomputation() -> bool:
    """Return whether a forward is activation checkpointing's second one."""
    # The compiler recomputes without calling Python.
    if torch.compiler.is_compiling():
        return False
    # Autograd then runs backward in this thread.
    return torch._C._current_graph_task_id() != -1


def group_timeout(
    group: dist.ProcessGroup | None, device: torch.device
) -> timedelta | None:
    """Return the timeout of a group's collectives; None if it tells none."""
    if group is None:
        return None
    try:
        return group._get_backend(device).options._timeout
    except (RuntimeError, AttributeError):
        # A group written in Python has no backend; some backends have no
        # options, or none that tell a timeout.
        return None


def small_nccl_options(
    most_blocks: int, timeout: timedelta | None
) -> object | None:
    """Return ``pg_options`` of an NCCL communicator of few thread blocks.

    None where this torch or its NCCL has no such setting.
    """
    options = dist.ProcessGroupNCCL.Options()
    # Builds for an NCCL without communicator settings have none.
    config = getattr(options, 'config', None)
    if config is None or not hasattr(config, 'max_ctas'):
        return None
    config.max_ctas = most_blocks
    if timeout is not None:
        options._timeout = timeout  # torch warns where the group's is another
    return options


def synchronised_batch_norm(layer: nn.SyncBatchNorm, x: Tensor) -> Tensor:
    """Normalise as ``nn.SyncBatchNorm`` among several ranks, on one GPU."""
    from torch.nn.modules._functions import SyncBatchNorm

    return SyncBatchNorm.apply(
        x,
        layer.weight,
        layer.bias,
        layer.running_mean,
        layer.running_var,
        layer.eps,
        layer.momentum,
        torch.distributed.group.WORLD,
        torch.distributed.get_world_size(),
    )


class Operation(NamedTuple):
    """One operation that PyTorch dispatched, and what it reads and writes."""

    name: str
    reads: list[Tensor]
    writes: list[Tensor]


@contextmanager
def recorded_operations() -> Iterator[list[Operation]]:
    """Record what PyTorch dispatches, to count the passes over the data.

    What is only overwritten counts as read too, except for ``out=``.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    operations: list[Operation] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            schema = func._schema
            names = [argument.name for argument in schema.arguments]
            given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
            reads, writes = [], _tensors(out)
            for argument in schema.arguments:
                values = _tensors(given.get(argument.name))
                alias = argument.alias_info
                if alias is not None and alias.is_write:
                    writes += values
                if not argument.is_out:
                    reads += values
            name = schema.name.split('::')[1]
            operations.append(Operation(name, reads, writes))
            return out

    with Recorder():
        yield operations


def _tensors(value: object) -> list[Tensor]:
    values = value if isinstance(value, (tuple, list)) else [value]
    return [v for v in values if isinstance(v, Tensor)]


def default_store() -> Any:
    """Return the store by which the ranks met, for what is no collective."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
