# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Private names of torch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType
from typing import TypeVar

from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    set_code_exec_strategy,
)
from torch._compile import _disable_dynamo

_Function = TypeVar('_Function', bound=Callable)


def outside_graphs(function: _Function) -> _Function:
    """Keep a function, and what it calls, out of ``torch.compile``'s graphs.

    As ``torch.compiler.disable``, which imports the compiler (for seconds) as
    it decorates. This waits until somebody else has.
    """
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
    strategy = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT)
    set_code_exec_strategy(code, strategy)
