# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Private names of MMEngine."""

from __future__ import annotations

from types import FunctionType

from mmengine.optim.scheduler import OneCycleParamScheduler
from mmengine.runner import Runner


def annealing_functions() -> dict[str, FunctionType]:
    """Return the functions that OneCycleParamScheduler keeps in its state.

    They are static methods, and so pickled as attributes of the class.
    """
    return {
        name: getattr(OneCycleParamScheduler, name)
        for name in ('_annealing_cos', '_annealing_linear')
    }


def resumes(runner: Runner) -> bool:
    """Return whether the runner was told to resume (``resume=True``)."""
    return bool(runner._resume)
