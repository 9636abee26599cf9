# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The shapes of warm-ups: linear, cosine, exponential, two-stage.

Each is there for any parameter, for the learning rate and for the momentum,
as MMEngine has its schedulers.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from mmengine.optim.scheduler.param_scheduler import OptimizerType
from mmengine.registry import PARAM_SCHEDULERS

from ..errors import ConfigError
from .warmup import (
    LRWarmupMixin,
    MomentumWarmupMixin,
    WarmupParamScheduler,
    check_steps,
)


@PARAM_SCHEDULERS.register_module()
class PreciseLinearWarmupParamScheduler(WarmupParamScheduler):
    r"""Raise a parameter linearly, exact at both ends.

    Contract: that of :class:`WarmupParamScheduler`, with the value

    .. math::
        start + (end - start) \cdot t / T

    at update :math:`t` of :math:`T`, rounded once. This is MMCV 1.x's
    ``warmup='linear', warmup_iters=T, warmup_ratio=start_factor``.
    (MMEngine's ``LinearLR`` reaches the end one step earlier.)
    """

    def _shape(
        self, start: Fraction, end: Fraction, progress: Fraction
    ) -> Fraction:
        return start + (end - start) * progress


@PARAM_SCHEDULERS.register_module()
class PreciseLinearWarmup(LRWarmupMixin, PreciseLinearWarmupParamScheduler):
    """Raise the learning rate linearly, exact at both ends.

    Contract and arguments: :class:`WarmupParamScheduler`, where
    ``param_name`` is a keyword and defaults to 'lr'. In short: update
    ``begin`` uses ``start_factor`` times the optimizer's learning rate,
    update ``end`` the learning rate itself, bit for bit, whatever the number
    of iterations that gradients are accumulated over.

    Examples:
        >>> param_scheduler = [
        ...     # 1000 optimizer updates
        ...     dict(type='PreciseLinearWarmup', start_factor=0.001, end=1000),
        ...     dict(type='MultiStepLR', milestones=[16, 22], end=24),
        ... ]
    """


@PARAM_SCHEDULERS.register_module()
class PreciseLinearWarmupMomentum(
    MomentumWarmupMixin, PreciseLinearWarmupParamScheduler
):
    """:class:`PreciseLinearWarmup` for SGD's momentum or Adam's beta_1."""


@PARAM_SCHEDULERS.register_module()
class PreciseCosineWarmupParamScheduler(WarmupParamScheduler):
    r"""Raise a parameter along half a cosine wave: flat at both ends.

    Contract: that of :class:`WarmupParamScheduler`, with the value

    .. math::
        start + (end - start) \cdot (1 - \cos(\pi t / T)) / 2

    at update :math:`t` of :math:`T`, within ``3 * 2**-53 * |end - start|``.
    """

    def _shape(
        self, start: Fraction, end: Fraction, progress: Fraction
    ) -> Fraction:
        # (1 - cos(2 a)) / 2 = sin(a) ** 2, without the cancellation near 0.
        sine = math.sin(Fraction(math.pi) * progress / 2)
        return start + (end - start) * Fraction(sine) ** 2


@PARAM_SCHEDULERS.register_module()
class PreciseCosineWarmup(LRWarmupMixin, PreciseCosineWarmupParamScheduler):
    """Raise the learning rate along half a cosine wave.

    Contract and arguments: :class:`WarmupParamScheduler`, where
    ``param_name`` is a keyword and defaults to 'lr'. Slower than the linear
    warm-up in the beginning and near the end, faster in the middle.

    Examples:
        >>> dict(type='PreciseCosineWarmup', start_factor=0.001, end=1000)
    """


@PARAM_SCHEDULERS.register_module()
class PreciseCosineWarmupMomentum(
    MomentumWarmupMixin, PreciseCosineWarmupParamScheduler
):
    """:class:`PreciseCosineWarmup` for SGD's momentum or Adam's beta_1."""


@PARAM_SCHEDULERS.register_module()
class PreciseExponentialWarmupParamScheduler(WarmupParamScheduler):
    r"""Raise a parameter by the same factor at every update.

    Contract: that of :class:`WarmupParamScheduler`, with the value

    .. math::
        end \cdot start\_factor^{1 - t / T}

    at update :math:`t` of :math:`T`, within ``3 * 2**-53`` of the larger end;
    :math:`start\_factor` is :math:`start / end` with absolute values. It must
    be greater than 0. This is MMCV 1.x's ``warmup='exp', warmup_iters=T,
    warmup_ratio=start_factor``.

    Raises:
        ConfigError: If the start is 0, which no factor leads away from.
    """

    def _check_arguments(self, begin: int, end: int) -> None:
        super()._check_arguments(begin, end)
        if self.start_factor == 0 or self.start_value == 0:
            raise ConfigError(
                f'{type(self).__name__} multiplies by the same factor at '
                'every step, and none leads away from 0: use a start_factor '
                '(or start_value) greater than 0, or the linear warm-up.'
            )

    def _shape(
        self, start: Fraction, end: Fraction, progress: Fraction
    ) -> Fraction:
        return end * Fraction(float(start / end) ** float(1 - progress))


@PARAM_SCHEDULERS.register_module()
class PreciseExponentialWarmup(
    LRWarmupMixin, PreciseExponentialWarmupParamScheduler
):
    """Raise the learning rate by the same factor at every update.

    Contract and arguments: :class:`WarmupParamScheduler`, where
    ``param_name`` is a keyword and defaults to 'lr'; ``start_factor`` must
    be greater than 0. The learning rate stays low for longer than with the
    linear warm-up. MMDetection's maintainers recommend it against NaN losses
    with 96 images an update (mmdetection issue #1710), and AGVM's recipe for
    256 images uses it (Sense-X/AGVM, faster_rcnn_res50_bs256.py).

    Examples:
        >>> dict(type='PreciseExponentialWarmup', start_factor=0.1, end=1000)
    """


@PARAM_SCHEDULERS.register_module()
class PreciseExponentialWarmupMomentum(
    MomentumWarmupMixin, PreciseExponentialWarmupParamScheduler
):
    """:class:`PreciseExponentialWarmup` for momentum or Adam's beta_1."""


@PARAM_SCHEDULERS.register_module()
class PreciseTwoStageWarmupParamScheduler(WarmupParamScheduler):
    r"""Hold a parameter at a low value, then raise it linearly.

    Contract: that of :class:`WarmupParamScheduler`, with the value
    :math:`start` at every update :math:`t \le hold`, and then

    .. math::
        start + (end - start) \cdot (t - hold) / (T - hold)

    at update :math:`t` of :math:`T`, rounded once.

    Args:
        hold (int): Length of the first stage, counted as ``begin`` and
            ``end`` are, from ``begin`` on; 0 < hold < end - begin. A keyword.
        *args: As :class:`WarmupParamScheduler`.
        **kwargs: As :class:`WarmupParamScheduler`.

    Raises:
        ConfigError: If ``hold`` leaves nothing of one of the stages.
    """

    _LENGTHS = (*WarmupParamScheduler._LENGTHS, 'hold')

    def __init__(
        self, optimizer: OptimizerType, *args: Any, hold: int, **kwargs: Any
    ) -> None:
        self.hold = hold
        super().__init__(optimizer, *args, **kwargs)

    def _check_arguments(self, begin: int, end: int) -> None:
        super()._check_arguments(begin, end)
        check_steps(hold=self.hold)
        if not 0 < self.hold < end - begin:
            raise ConfigError(
                'the first of the two stages needs 0 < hold < end - begin, '
                f'but got hold={self.hold}, begin={begin}, end={end}'
            )

    def _shape(
        self, start: Fraction, end: Fraction, progress: Fraction
    ) -> Fraction:
        held = Fraction(self.hold, self.end - self.begin)
        rise = max(Fraction(0), (progress - held) / (1 - held))
        return start + (end - start) * rise


@PARAM_SCHEDULERS.register_module()
class PreciseTwoStageWarmup(
    LRWarmupMixin, PreciseTwoStageWarmupParamScheduler
):
    """Hold the learning rate at a low value, then raise it linearly.

    Contract and arguments: :class:`PreciseTwoStageWarmupParamScheduler`,
    where ``param_name`` is a keyword and defaults to 'lr'. Made for data sets
    of tiny objects, whose first updates are unstable at any larger rate.

    Examples:
        >>> # 500 updates at a hundredth, then 500 up to the learning rate
        >>> dict(
        ...     type='PreciseTwoStageWarmup',
        ...     start_factor=0.01,
        ...     hold=500,
        ...     end=1000,
        ... )
    """


@PARAM_SCHEDULERS.register_module()
class PreciseTwoStageWarmupMomentum(
    MomentumWarmupMixin, PreciseTwoStageWarmupParamScheduler
):
    """:class:`PreciseTwoStageWarmup` for momentum or Adam's beta_1."""
