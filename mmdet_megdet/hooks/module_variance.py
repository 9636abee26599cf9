# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""AGVM: a learning rate for each part of the model, by its noise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any

from mmengine.hooks import Hook
from mmengine.optim import LinearParamScheduler, _ParamScheduler
from mmengine.optim.optimizer import ZeroRedundancyOptimizer
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch.optim import Optimizer

from ..errors import ConfigError
from ..noise import TOTAL, module_factors
from ..schedulers import WarmupParamScheduler
from .gradient_noise import GradientNoiseHook

# Of a checkpoint.
_KEY = 'module_variance'


@HOOKS.register_module()
class ModuleVarianceHook(Hook):
    """Scale the learning rate of each part of the model by its noise.

    AGVM ('Large-batch Optimization for Dense Visual Predictions', Xue et al.,
    NeurIPS 2022): with a large batch the gradients of a detector's heads are
    quieter than the backbone's, so they can take larger steps: by
    ``sqrt(d / d_part)``, where ``d`` is the anchor's ``1 - cos`` between the
    gradients of the batch's two halves. docs/which_batch.md has what was
    published, and where this differs.

    Contract:

    - ``1 - cos`` comes from the noise scale Bn that ``GradientNoiseHook``
      measures, as ``Bn / (Bn + B/2)``. That hook has to be there, and its
      ``interval`` is that of the factors.
    - Factors are averaged from 1 on; a factor holds from the update after
      its measurement. Until ``begin`` there are none.
    - It splits the optimizer's parameter groups by part when ``step`` begins
      and puts the very same groups back when it ends. So schedulers,
      checkpoints and the log see the learning rates of the config, bit for
      bit, and settings by parameter stay.
    - The factors are in the checkpoint, and in the vis backends as
      ``lr_factor/<part>``.

    Args:
        begin (int, optional): Updates from which on it scales. Defaults to
            None: when the schedule's warm-up of the learning rate is over.
        momentum (float): Of the factors' averages, from one measurement to
            the next. Defaults to 0.97, as published.
        max_factor (float): The largest factor, and its inverse the smallest.
            Defaults to the root of 10, as published.
        anchor (str): The part that keeps its learning rate. Defaults to
            'backbone'.

    Attributes:
        factors (dict[str, float]): Each part's present factor; empty until
            the first.

    Examples:
        >>> default_hooks = dict(
        ...     grad_noise=dict(type='GradientNoiseHook', interval=10),
        ...     module_variance=dict(type='ModuleVarianceHook'))
    """

    # Behind GradientNoiseHook.
    priority = 'BELOW_NORMAL'

    def __init__(
        self,
        begin: int | None = None,
        momentum: float = 0.97,
        max_factor: float = 10**0.5,
        anchor: str = 'backbone',
    ) -> None:
        if begin is not None and (type(begin) is not int or begin < 0):
            raise ConfigError(f'begin={begin!r} must be an int from 0.')
        if not 0 <= momentum < 1:
            raise ConfigError(f'momentum={momentum!r} must be 0 to below 1.')
        if not max_factor >= 1:
            raise ConfigError(f'max_factor={max_factor!r} must be from 1.')
        self.begin = begin
        self.momentum = momentum
        self.max_factor = max_factor
        self.anchor = anchor
        self.factors: dict[str, float] = {}
        self._saved: dict | None = None
        self._attached = ExitStack()

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Keep the checkpoint's factors."""
        self._saved = checkpoint.get(_KEY)

    def before_train(self, runner: Runner) -> None:
        """Check what it needs, and wait for the optimizer's steps."""
        noise = [h for h in runner.hooks if isinstance(h, GradientNoiseHook)]
        if not noise:
            raise ConfigError(
                'ModuleVarianceHook needs GradientNoiseHook: set grad_noise='
                "dict(type='GradientNoiseHook', interval=10)."
            )
        self._noise = noise[0]
        if self.anchor not in self._noise.parts:
            raise ConfigError(
                f'ModuleVarianceHook: anchor={self.anchor!r} is no part of '
                'the model that is trained. Choose one of '
                f'{", ".join(self._noise.parts)}.'
            )
        optimizer = runner.optim_wrapper.optimizer
        if isinstance(optimizer, ZeroRedundancyOptimizer):
            raise ConfigError(
                'ModuleVarianceHook: ZeroRedundancyOptimizer keeps groups of '
                'its own. Use the optimizer that it wraps.'
            )
        self._begin = self.begin
        if self._begin is None:
            schedulers = filter(_warms_up, runner.param_schedulers or [])
            self._begin = max((s.end for s in schedulers), default=0)
        if runner.iter and self._saved is not None:
            self.factors = dict(self._saved['factors'])
        self._part_of = {
            parameter: name
            for name, parameters in self._noise.parts.items()
            for parameter in parameters
        }
        step = optimizer.step
        self._attached.callback(setattr, optimizer, 'step', step)
        optimizer.step = self._scaled(runner, step)

    def after_train_iter(
        self, runner: Runner, *args: Any, **kwargs: Any
    ) -> None:
        """Add a measurement's factors to the averages."""
        scales = self._noise.latest
        if scales is None or runner.iter + 1 < self._begin:
            return
        noise = {n: s.value for n, s in scales.items() if n != TOTAL}
        batch = runner.train_loop.plan.total_batch_size
        now = module_factors(noise, batch, self.anchor, self.max_factor)
        for name, factor in now.items():
            kept = self.momentum * self.factors.get(name, 1.0)
            self.factors[name] = kept + (1 - self.momentum) * factor
        if runner.rank == 0:
            runner.visualizer.add_scalars(
                {f'lr_factor/{n}': f for n, f in self.factors.items()},
                step=runner.iter + 1,
            )

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Save the factors, as plain numbers."""
        checkpoint[_KEY] = dict(factors=dict(self.factors))

    def after_train(self, runner: Runner, error: Any = None) -> None:
        """Restore the optimizer's own step."""
        self._attached.close()

    on_error = after_train

    def _scaled(self, runner: Runner, step: Callable) -> Callable:
        """Return the optimizer's step, with groups by part while it runs."""
        optimizer = runner.optim_wrapper.optimizer

        @wraps(step)
        def by_part(*args: Any, **kwargs: Any) -> Any:
            if not self.factors or runner.iter < self._begin:
                return step(*args, **kwargs)
            groups = optimizer.param_groups
            pieces = [self._split(group) for group in groups]
            optimizer.param_groups = [p for ps in pieces for p in ps]
            try:
                result = step(*args, **kwargs)
            finally:
                optimizer.param_groups = groups
            for group, own in zip(groups, pieces, strict=True):
                _keep_changes(group, own, optimizer)
            return result

        return by_part

    def _split(self, group: dict) -> list[dict]:
        by_factor: dict[float, list] = {}
        for parameter in group['params']:
            name = self._part_of.get(parameter, '')
            factor = self.factors.get(name, 1.0)
            by_factor.setdefault(factor, []).append(parameter)
        return [
            dict(group, params=params, lr=group['lr'] * factor)
            for factor, params in by_factor.items()
        ] or [group]


def _warms_up(scheduler: _ParamScheduler) -> bool:
    if scheduler.param_name != 'lr' or scheduler.by_epoch:
        return False
    if isinstance(scheduler, LinearParamScheduler):
        return scheduler.start_factor < scheduler.end_factor
    return isinstance(scheduler, WarmupParamScheduler)


def _keep_changes(
    group: dict, pieces: list[dict], optimizer: Optimizer
) -> None:
    """Take over what a step keeps in the groups, such as its count."""
    for name in pieces[0].keys() - {'params', 'lr'}:
        if any(piece[name] != pieces[0][name] for piece in pieces):
            raise ConfigError(
                f'ModuleVarianceHook: {type(optimizer).__name__} keeps '
                f'{name!r} in its parameter groups, which depends on the '
                'learning rate. Use another optimizer.'
            )
        group[name] = pieces[0][name]
