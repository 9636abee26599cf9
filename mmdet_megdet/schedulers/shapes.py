# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The warm-ups to choose from: four shapes, each for any parameter, for the
learning rate and for the momentum, as MMEngine has its schedulers.
"""

from __future__ import annotations

import math
from fractions import Fraction

from mmengine.optim.scheduler.param_scheduler import OptimizerType
from mmengine.registry import PARAM_SCHEDULERS

from . import shapes
from .warmup import (
    LRWarmupMixin,
    MomentumWarmupMixin,
    WarmupParamScheduler,
    check_steps,
)


def linear(start: Fraction, end: Fraction, progress: Fraction) -> Fraction:
    """``start + (end - start) * progress``, exactly."""
    return start + (end - start) * progress


def cosine(start: Fraction, end: Fraction, progress: Fraction) -> Fraction:
    """``start + (end - start) * (1 - cos(pi * progress)) / 2``.

    Within ``3 * 2**-53 * |end - start|``.
    """
    # (1 - cos(2 a)) / 2 = sin(a) ** 2, without the cancellation near 0.
    sine = math.sin(Fraction(math.pi) * progress / 2)
    return linear(start, end, Fraction(sine) ** 2)


def exponential(
    start: Fraction, end: Fraction, progress: Fraction
) -> Fraction:
    """``end * (start / end) ** (1 - progress)``; both ends must be > 0.

    Within ``3 * 2**-53`` of the larger end.
    """
    return end * Fraction(float(start / end) ** float(1 - progress))


def two_stage(
    start: Fraction, end: Fraction, progress: Fraction, held: Fraction
) -> Fraction:
    """``start`` up to the progress ``held`` < 1, then linear; exactly."""
    return linear(start, end, max(Fraction(0), (progress - held) / (1 - held)))


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

    def _shape(self, start, end, progress):
        return shapes.linear(start, end, progress)


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

    at update :math:`t` of :math:`T`.
    """

    def _shape(self, start, end, progress):
        return shapes.cosine(start, end, progress)


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

    at update :math:`t` of :math:`T`, where :math:`start\_factor` is
    :math:`start / end` with absolute values. It must be greater than 0. This
    is MMCV 1.x's ``warmup='exp', warmup_iters=T, warmup_ratio=start_factor``.

    Raises:
        ValueError: If the start is 0, which no factor leads away from.
    """

    def _check_arguments(self, begin: int, end: int) -> None:
        super()._check_arguments(begin, end)
        if self.start_factor == 0 or self.start_value == 0:
            raise ValueError(
                f'{type(self).__name__} multiplies by the same factor at '
                'every step, and none leads away from 0: use a start_factor '
                '(or start_value) greater than 0, or the linear warm-up.'
            )

    def _shape(self, start, end, progress):
        return shapes.exponential(start, end, progress)


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
        ValueError: If ``hold`` leaves nothing of one of the stages.
    """

    _LENGTHS = (*WarmupParamScheduler._LENGTHS, 'hold')

    def __init__(
        self, optimizer: OptimizerType, *args, hold: int, **kwargs
    ) -> None:
        self.hold = hold
        super().__init__(optimizer, *args, **kwargs)

    def _check_arguments(self, begin: int, end: int) -> None:
        super()._check_arguments(begin, end)
        check_steps(hold=self.hold)
        if not 0 < self.hold < end - begin:
            raise ValueError(
                'the first of the two stages needs 0 < hold < end - begin, '
                f'but got hold={self.hold}, begin={begin}, end={end}'
            )

    def _shape(self, start, end, progress):
        held = Fraction(self.hold, self.end - self.begin)
        return shapes.two_stage(start, end, progress, held)


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
