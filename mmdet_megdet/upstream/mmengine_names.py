# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Private names of MMEngine."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, Literal, TypeAlias
from unittest.mock import patch

import torch
from mmengine.dataset import InfiniteSampler
from mmengine.optim import BaseOptimWrapper, OptimWrapper, _ParamScheduler
from mmengine.optim.scheduler import OneCycleParamScheduler
from mmengine.registry import DATA_SAMPLERS
from mmengine.runner import BaseLoop, Runner, checkpoint
from torch.optim import Optimizer
from torch.utils.data import DataLoader

Kind = Literal['train', 'val', 'test']
_Stepped: TypeAlias = Optimizer | BaseOptimWrapper


def is_cut_to_batches(dataset: Any) -> bool:
    """Return whether ``num_batch_per_epoch`` has cut a data set."""
    from mmengine.runner.runner import _SlicedDataset

    return isinstance(dataset, _SlicedDataset)


def count_skipped_update(wrapper: OptimWrapper, micro_steps: int) -> None:
    """Count an update that was not made, after so many micro-steps of all."""
    wrapper._inner_count = micro_steps
    # By which schedulers tell whether the optimizer has stepped; there is
    # none before a scheduler is built.
    wrapper._global_step = getattr(wrapper, '_global_step', 0) + 1


def annealing_functions() -> dict[str, FunctionType]:
    """Return the static methods that OneCycleParamScheduler's state has."""
    return {
        name: getattr(OneCycleParamScheduler, name)
        for name in ('_annealing_cos', '_annealing_linear')
    }


def resumes(runner: Runner) -> bool:
    """Return whether the runner was told to resume (``resume=True``)."""
    return bool(runner._resume)


def endless_batches(loader: DataLoader) -> Iterator:
    """Iterate over a loader again and again, as IterBasedTrainLoop does."""
    from mmengine.runner.loops import _InfiniteDataloaderIterator

    return _InfiniteDataloaderIterator(loader)


def schedulers_of(optimizer: _Stepped) -> list[_ParamScheduler]:
    """Return the schedulers of an optimizer, of which nobody keeps a list.

    The garbage collector knows all objects, a million of them in 0.2 s.
    """
    return [
        thing
        for thing in gc.get_objects()
        # By its type: isinstance would wake up lazy proxies.
        if issubclass(type(thing), _ParamScheduler)
        and _bare(getattr(thing, 'optimizer', None)) is _bare(optimizer)
    ]


def as_on_rank_0() -> AbstractContextManager:
    """Let this rank do what MMEngine leaves to rank 0, such as drawing."""
    return patch('mmengine.dist.utils.is_main_process', lambda *_: True)


def _bare(optimizer: _Stepped | None) -> Optimizer | None:
    return getattr(optimizer, 'optimizer', optimizer)


def steps_counted(optimizer: Any) -> int:
    """Return how often ``step`` was called, as schedulers count it.

    The count begins at -1 whenever a scheduler of the optimizer is built.
    """
    return optimizer._global_step


def set_accumulation(wrapper: OptimWrapper, micro_steps: int) -> None:
    """Set ``accumulative_counts`` of a built wrapper, ahead of training."""
    wrapper._accumulative_counts = micro_steps


def accumulation_of(wrapper: OptimWrapper) -> int:
    """Return ``accumulative_counts``: how many micro-steps make an update."""
    return wrapper._accumulative_counts


def built_loop(runner: Runner, kind: Kind) -> BaseLoop | None:
    """Return a loop if the runner has built it, without building it."""
    loop = getattr(runner, f'_{kind}_loop')
    return loop if isinstance(loop, BaseLoop) else None


def has_seed_of_each_rank(runner: Runner) -> bool:
    """Return whether the config sets ``randomness.diff_rank_seed``."""
    return bool(runner._randomness_cfg.get('diff_rank_seed', False))


def begin_again(runner: Runner, loader: DataLoader) -> None:
    """Let an InfiniteSampler and the batch sampler begin again."""
    sampler: Any = getattr(loader.batch_sampler, 'sampler', loader.sampler)
    if isinstance(sampler, InfiniteSampler):
        sampler.indices = sampler._indices_of_rank()
    config: Any = runner._train_dataloader
    batches = config.get('batch_sampler') if isinstance(config, dict) else None
    if isinstance(batches, dict):
        # mmdet's has yet to clear the batch that it gave last, without which
        # it never gives another of that orientation.
        made = dict(sampler=sampler, batch_size=config['batch_size'])
        anew = DATA_SAMPLERS.build(batches, default_args=made)
        vars(loader).update(batch_sampler=anew)


def load_as_torch_does() -> None:
    """Let onedl-mmengine unpickle what ``torch.load`` does, no more."""
    if hasattr(checkpoint, '_safe_torch_load'):
        checkpoint._safe_torch_load = torch.load


def checkpoint_loaders() -> dict[str, Callable]:
    """Return what loads checkpoints, by the prefix of their addresses."""
    return dict(checkpoint.CheckpointLoader._schemes)


def runner_without_model(
    world_size: int, loader: DataLoader, train_cfg: dict[str, Any]
) -> Runner:
    """Return a Runner that has a training loop and nothing else.

    It builds schedulers and scales learning rates as in a training of so many
    ranks. It wants a ``logger`` and a ``visualizer``.
    """
    runner = Runner.__new__(Runner)
    runner._world_size = world_size
    runner._train_dataloader = loader
    runner._train_loop = train_cfg
    return runner
