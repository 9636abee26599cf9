# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The shapes of warm-ups: linear, cosine, exponential, two-stage.

Each is there for any parameter, for the learning rate and for the momentum,
as MMEngine has its schedulers. Contract and arguments of all of them:
:class:`WarmupParamScheduler`; with 'lr' or the momentum ``param_name`` is no
argument. Their use is in ``docs/own_config.md``.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from mmengine.optim.scheduler.momentum_scheduler import MomentumSchedulerMixin
from mmengine.optim.scheduler.param_scheduler import OptimizerType
from mmengine.registry import PARAM_SCHEDULERS

from ..errors import ConfigError
from .warmup import WarmupParamScheduler


class LRWarmupMixin:
    """Apply a warm-up to the learning rate."""

    def __init__(
        self,
        optimizer: OptimizerType,
        *args: Any,
        param_name: str = 'lr',
        **kwargs: Any,
    ) -> None:
        # The shape's.
        super().__init__(optimizer, param_name, *args, **kwargs)  # type: ignore[call-arg]


class MomentumWarmupMixin(MomentumSchedulerMixin):
    """Apply a warm-up to SGD's momentum or to Adam's beta_1."""

    def load_state_dict(self, state_dict: dict) -> None:
        """Continue from a checkpoint, Adam's betas included."""
        super().load_state_dict(state_dict)
        if self.use_betas:
            for group in self.optimizer.param_groups:
                group['betas'] = (group['momentum'], *group['betas'][1:])


def _variants(shape: type[WarmupParamScheduler]) -> tuple[Any, Any]:
    """Register a shape for the learning rate and for the momentum."""
    name, made = shape.__name__.removesuffix('ParamScheduler'), []
    for mixin, suffix, what in (
        (LRWarmupMixin, '', 'the learning rate'),
        (MomentumWarmupMixin, 'Momentum', "SGD's momentum or Adam's beta_1"),
    ):
        doc = f':class:`{shape.__name__}` of {what}.'
        names = dict(__doc__=doc, __module__=__name__)
        made.append(type(name + suffix, (mixin, shape), names))
        PARAM_SCHEDULERS.register_module(module=made[-1])
    return made[0], made[1]


@PARAM_SCHEDULERS.register_module()
class PreciseLinearWarmupParamScheduler(WarmupParamScheduler):
    """Raise a parameter linearly, exact at both ends.

    At update t of T it is ``start + (end - start) * t / T``, rounded once:
    MMCV 1.x's ``warmup='linear', warmup_iters=T, warmup_ratio=start_factor``.
    (MMEngine's ``LinearLR`` reaches the end one step earlier.)
    """

    def _shape(self, start: Fraction, progress: Fraction) -> Fraction:
        return start + (1 - start) * progress


PreciseLinearWarmup, PreciseLinearWarmupMomentum = _variants(
    PreciseLinearWarmupParamScheduler
)


@PARAM_SCHEDULERS.register_module()
class PreciseCosineWarmupParamScheduler(WarmupParamScheduler):
    """Raise a parameter along half a cosine wave: flat at both ends.

    At update t of T it is ``start + (end - start) * (1 - cos(pi t / T)) / 2``,
    within ``3 * 2**-53 * |end - start|``.
    """

    def _shape(self, start: Fraction, progress: Fraction) -> Fraction:
        # (1 - cos(2 a)) / 2 = sin(a) ** 2, without the cancellation near 0.
        sine = math.sin(Fraction(math.pi) * progress / 2)
        return start + (1 - start) * Fraction(sine) ** 2


PreciseCosineWarmup, PreciseCosineWarmupMomentum = _variants(
    PreciseCosineWarmupParamScheduler
)


@PARAM_SCHEDULERS.register_module()
class PreciseExponentialWarmupParamScheduler(WarmupParamScheduler):
    """Raise a parameter by the same factor at every update.

    At update t of T it is ``end * (start / end) ** (1 - t / T)``, within
    ``3 * 2**-53`` of the larger end: MMCV 1.x's ``warmup='exp'``. The start
    must be greater than 0.
    """

    def _check_arguments(self, begin: int, end: int) -> None:
        super()._check_arguments(begin, end)
        if self.start_factor == 0 or self.start_value == 0:
            raise ConfigError(
                f'{type(self).__name__}: no factor leads away from 0. Use a '
                'start_factor (or start_value) above 0, or the linear warm-up.'
            )

    def _shape(self, start: Fraction, progress: Fraction) -> Fraction:
        return Fraction(float(start) ** float(1 - progress))


PreciseExponentialWarmup, PreciseExponentialWarmupMomentum = _variants(
    PreciseExponentialWarmupParamScheduler
)


@PARAM_SCHEDULERS.register_module()
class PreciseTwoStageWarmupParamScheduler(WarmupParamScheduler):
    """Hold a parameter at a low value, then raise it linearly.

    It is ``start`` up to update ``hold``, and then at update t of T
    ``start + (end - start) * (t - hold) / (T - hold)``, rounded once. Made
    for data sets of tiny objects.

    Args:
        hold (int): Length of the first stage, counted as ``begin`` and
            ``end`` are, from ``begin`` on; 0 < hold < end - begin.
        *args: As :class:`WarmupParamScheduler`.
        **kwargs: As :class:`WarmupParamScheduler`.
    """

    _LENGTHS = (*WarmupParamScheduler._LENGTHS, 'hold')

    def __init__(
        self, optimizer: OptimizerType, *args: Any, hold: int, **kwargs: Any
    ) -> None:
        self.hold = hold
        super().__init__(optimizer, *args, **kwargs)

    def _check_arguments(self, begin: int, end: int) -> None:
        super()._check_arguments(begin, end)
        if type(self.hold) is not int or not 0 < self.hold < end - begin:
            raise ConfigError(
                'the first of the two stages needs a whole number 0 < hold < '
                f'end - begin, but got hold={self.hold}, begin={begin}, '
                f'end={end}.'
            )

    def _shape(self, start: Fraction, progress: Fraction) -> Fraction:
        held = Fraction(self.hold, self.end - self.begin)
        rise = max(Fraction(0), (progress - held) / (1 - held))
        return start + (1 - start) * rise


PreciseTwoStageWarmup, PreciseTwoStageWarmupMomentum = _variants(
    PreciseTwoStageWarmupParamScheduler
)
