# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Telling a forward of activation checkpointing's second round."""

from __future__ import annotations

import torch


def in_recomputation() -> bool:
    """Whether autograd is running backward in this thread.

    A forward in that state repeats one that activation checkpointing,
    reentrant or not, has made before. What ``torch.compile`` traces is no
    such forward: there the compiler itself recomputes.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._current_graph_task_id() != -1
