# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Warm-up in closed form, exact at both ends."""

from __future__ import annotations

from fractions import Fraction

from mmengine.optim.scheduler.momentum_scheduler import MomentumSchedulerMixin
from mmengine.optim.scheduler.param_scheduler import INF, OptimizerType
from mmengine.registry import PARAM_SCHEDULERS

from .warmup_base import WarmupParamScheduler


def linear_factor(t: int, total: int, start_factor: float) -> float:
    """Factor of the base value after ``t`` of ``total`` warm-up steps.

    Returns:
        float: ``start_factor + (1 - start_factor) * t / total``, computed
        exactly and rounded once.
    """
    start = Fraction(start_factor)
    return float(start + (1 - start) * Fraction(t, total))


@PARAM_SCHEDULERS.register_module()
class PreciseLinearWarmupParamScheduler(WarmupParamScheduler):
    r"""Raise a parameter linearly to its base value, exact at both ends.

    Contract:

    - **Units.** The Runner calls :meth:`step` after every iteration, or
      after every epoch with ``by_epoch=True``; nobody else does. ``begin``
      and ``end`` count these steps. An iteration is one pass forward and
      backward: with ``accumulative_counts=8``, 1000 optimizer updates are
      ``end=8000``.
    - **Values.** Iteration ``begin + t`` (counted from 0) uses

      .. math::
          base \cdot (start\_factor + (1 - start\_factor) \cdot t / T),
          \quad T = end - begin, \quad 0 \le t \le T

      within ``1.5 * 2**-53 * base``. ``base`` is the group's own value in
      the optimizer. This is MMCV 1.x's ``warmup='linear', warmup_iters=T,
      warmup_ratio=start_factor``.
    - **Ends.** Before ``begin`` nothing is written. Iteration ``begin`` uses
      ``base * start_factor``, and iteration ``end`` uses ``base``, bit for
      bit. (mmengine's ``LinearLR`` is there one iteration earlier.)
      Afterwards nothing is written.
    - **Other schedulers** that multiply the value before or during the
      warm-up, as ``MultiStepLR`` does, keep their effect, in any order. A
      factor that meets the value 0 would be lost: that is an error.
    - **Resume** continues exactly, at any step. The checkpoint's settings
      and base values rule; where the config says otherwise, the log warns.

    Args:
        optimizer (BaseOptimWrapper or Optimizer): Optimizer, wrapped or not.
        param_name (str): Key in the optimizer's ``param_groups``.
        start_factor (float): Factor of the base value at ``begin``, in
            [0, 1]. Defaults to 0.001.
        begin (int): First step of the warm-up. Defaults to 0.
        end (int): Step that uses the base value again. Required. (Runner
            fills a missing ``end`` with the length of the whole training.)
        by_epoch (bool): Whether to step once an epoch. For a warm-up given
            in epochs that rises every iteration, add
            ``convert_to_iter_based=True`` in the config. Defaults to False.
    """

    def __init__(
        self,
        optimizer: OptimizerType,
        param_name: str,
        start_factor: float = 0.001,
        begin: int = 0,
        end: int = INF,
        by_epoch: bool = False,
    ) -> None:
        if not 0 <= start_factor <= 1:
            raise ValueError(
                'start_factor is a factor of the base value and must be in '
                f'[0, 1], but got {start_factor}'
            )
        self.start_factor = start_factor
        super().__init__(optimizer, param_name, begin, end, by_epoch)

    def _factor(self, t: int) -> float:
        return linear_factor(t, self.end - self.begin, self.start_factor)


@PARAM_SCHEDULERS.register_module()
class PreciseLinearWarmup(PreciseLinearWarmupParamScheduler):
    """Raise the learning rate linearly to its base value, exact at both ends.

    The contract is that of :class:`PreciseLinearWarmupParamScheduler`.

    Args:
        optimizer (BaseOptimWrapper or Optimizer): Optimizer, wrapped or not.
        start_factor (float): Factor of the base value at ``begin``, in
            [0, 1]. Defaults to 0.001.
        begin (int): First step of the warm-up. Defaults to 0.
        end (int): Step that uses the base value again. Required.
        by_epoch (bool): Whether to step once an epoch instead of once an
            iteration. Defaults to False.
        param_name (str): Key in the optimizer's ``param_groups``. Defaults
            to 'lr'.

    Examples:
        >>> param_scheduler = [
        ...     dict(type='PreciseLinearWarmup', start_factor=0.001, end=8000),
        ...     dict(type='MultiStepLR', milestones=[16, 22], end=24),
        ... ]
    """

    def __init__(
        self,
        optimizer: OptimizerType,
        start_factor: float = 0.001,
        begin: int = 0,
        end: int = INF,
        by_epoch: bool = False,
        param_name: str = 'lr',
    ) -> None:
        super().__init__(
            optimizer, param_name, start_factor, begin, end, by_epoch
        )


@PARAM_SCHEDULERS.register_module()
class PreciseLinearWarmupMomentum(
    MomentumSchedulerMixin, PreciseLinearWarmupParamScheduler
):
    """Raise the momentum linearly to its base value, exact at both ends.

    The momentum is SGD's, or the first of Adam's betas. The contract and the
    arguments are those of :class:`PreciseLinearWarmupParamScheduler`, without
    ``param_name``.
    """
