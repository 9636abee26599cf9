# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Parameter schedulers that would not do what the config says."""

from __future__ import annotations

from typing import Any

from mmengine.optim import OptimWrapper, _ParamScheduler
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner

from ..schedulers import check_together
from .config import ConfigError, check_warmup_ends, each_config


def check_schedules(runner: Runner) -> None:
    """Refuse schedulers of a training that would not do what they say.

    Args:
        runner (Runner): With what training needs built.

    Raises:
        ConfigError: If there is one.
    """
    configs = runner.cfg.get('param_scheduler')
    check_warmup_ends(configs)
    if isinstance(runner.train_loop, IterBasedTrainLoop):
        _check_converted_ends(configs)
    by_optimizer = runner.param_schedulers or []
    wrapper = runner.optim_wrapper
    if isinstance(by_optimizer, dict):
        pairs = [(wrapper[name], by_optimizer[name]) for name in by_optimizer]
    else:
        pairs = [(wrapper, by_optimizer)]
    for wrapper, schedulers in pairs:
        for scheduler in schedulers:
            _check_steps(runner, scheduler)
        try:
            check_together(
                schedulers,
                _iterations_per_update(runner, wrapper),
                len(runner.train_dataloader),
            )
        except ValueError as error:
            raise ConfigError(f'param_scheduler: {error}') from None


def _check_converted_ends(configs: Any) -> None:
    """Refuse what the Runner would end after one epoch."""
    for config in each_config(configs):
        if config.get('convert_to_iter_based') and config.get('end') is None:
            raise ConfigError(
                f'param_scheduler: {config["type"]} has no end, and the '
                'Runner takes the training by iteration for one epoch: it '
                'would end there. Give its end, in epochs.'
            )


def _check_steps(runner: Runner, scheduler: _ParamScheduler) -> None:
    """Refuse what is never stepped."""
    name, loop = type(scheduler).__name__, runner.train_loop
    if scheduler.by_epoch and isinstance(loop, IterBasedTrainLoop):
        raise ConfigError(
            f'param_scheduler: {name} counts epochs, of which '
            f'{type(loop).__name__} has none: it would never step. Give its '
            'lengths in iterations with by_epoch=False, or add an end, in '
            'epochs, and convert_to_iter_based=True.'
        )
    if getattr(scheduler, 'need_val_args', False) and runner.val_loop is None:
        raise ConfigError(
            f'param_scheduler: {name} goes by the results of validation, of '
            'which this training has none: it would never step. Add '
            'val_dataloader, val_cfg and val_evaluator, or choose another '
            'scheduler.'
        )


def _iterations_per_update(runner: Runner, wrapper: OptimWrapper) -> int:
    """Return it; 1 for a loop of another kind, which counts updates."""
    stock = EpochBasedTrainLoop | IterBasedTrainLoop
    if not isinstance(runner.train_loop, stock):
        return 1
    return wrapper._accumulative_counts
