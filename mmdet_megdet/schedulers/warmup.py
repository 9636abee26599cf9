# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What all warm-ups share: what they count and write, how they resume."""

from __future__ import annotations

import logging
from fractions import Fraction
from operator import is_not
from typing import Any, Literal

from mmengine.logging import print_log
from mmengine.optim import _ParamScheduler
from mmengine.optim.scheduler.param_scheduler import INF, OptimizerType

from ..errors import ConfigError
from ..upstream.mmengine_names import schedulers_of, steps_counted
from .checks import check_lengths, check_optimizer, check_values
from .conflicts import refuse_if_written


class WarmupParamScheduler(_ParamScheduler):
    """Base class of the warm-ups; their shapes are subclasses.

    Contract:

    - **Units.** ``begin`` and ``end`` count optimizer updates, those that a
      gradient scaler skips included. With ``count='iters'`` they count
      iterations, as MMEngine's schedulers do, and with ``by_epoch=True``
      epochs. The Runner calls :meth:`step` after every iteration (or epoch).
    - **Values.** Update ``begin + t`` (counted from 0) uses the shape's value
      at ``t`` of ``T = end - begin``, within ``2**-51`` of the larger end's
      value. It stays the same during the iterations of one update.
    - **Ends.** Update ``begin`` uses the start value and update ``end`` the
      end value, both bit for bit. Before and afterwards nothing is written.
      The start value is ``start_factor`` times the group's own value in the
      optimizer, the end value that value itself. ``start_value`` and
      ``end_value`` name them instead, the same for every group; a group whose
      own value is 0 (frozen) stays at 0.
    - **Other schedulers** that multiply, as ``MultiStepLR``, keep their
      effect, in any order; where a factor meets the value 0 and would be
      lost, that is an error. So are those that set the value or add to it.
    - **Resume** continues exactly, at any step, also with another
      ``accumulative_counts``. The checkpoint's settings rule; where the
      config's are others, the log warns.

    Args:
        optimizer (OptimWrapper or Optimizer): One optimizer.
        param_name (str): Key in the optimizer's ``param_groups``.
        start_factor (float, optional): In [0, 1]. Defaults to None: 0.001
            unless ``start_value`` is given.
        begin (int): First step of the warm-up. Defaults to 0.
        end (int): Step that uses the end value. Required.
        by_epoch (bool): Whether to step once an epoch. To give lengths in
            epochs, and rise with every iteration, add
            ``convert_to_iter_based=True``. Defaults to False.
        count (str): 'updates' (default) or 'iters', unless ``by_epoch``.
        start_value (float, optional): Instead of ``start_factor``.
        end_value (float, optional): With ``start_value``. Defaults to None:
            the group's own.
    """

    # Arguments that are lengths, which may be given in epochs.
    _LENGTHS: tuple[str, ...] = ('begin', 'end')

    def __init__(
        self,
        optimizer: OptimizerType,
        param_name: str,
        start_factor: float | None = None,
        begin: int = 0,
        end: int = INF,
        by_epoch: bool = False,
        count: Literal['updates', 'iters'] = 'updates',
        start_value: float | None = None,
        end_value: float | None = None,
    ) -> None:
        if start_factor is None and start_value is None and end_value is None:
            start_factor = 0.001
        self.start_factor = start_factor
        self.start_value = start_value
        self.end_value = end_value
        self.count = 'epochs' if by_epoch else count
        self._check_arguments(begin, end)
        check_optimizer(optimizer, count, by_epoch)
        # Per group, what other schedulers have multiplied the value by; None
        # until begin.
        self._others_factor: list[float] | None = None
        # Of schedulers that do not multiply, the step that they had made.
        self._watched: dict[_ParamScheduler, int] | None = None
        # Calls of optimizer.step seen. MMEngine's __init__ sets its count to
        # -1 and then steps once, for step 0.
        self._calls = -2
        super().__init__(
            optimizer, param_name, begin=begin, end=end, by_epoch=by_epoch
        )
        if end_value is not None and len(set(self.base_values) - {0}) > 1:
            raise ConfigError(
                f'end_value={end_value} is one value for all parameter '
                f'groups, whose own {param_name} differs: '
                f'{sorted(set(self.base_values))}. Leave end_value out.'
            )

    def _check_arguments(self, begin: int, end: int) -> None:
        check_lengths(begin, end)
        check_values(self.start_factor, self.start_value, self.end_value)

    @classmethod
    def build_iter_from_epoch(
        cls,
        *args: Any,
        by_epoch: bool = True,
        epoch_length: int | None = None,
        count: str = 'iters',
        **kwargs: Any,
    ) -> WarmupParamScheduler:
        """Build from epochs, as ``convert_to_iter_based=True`` asks for.

        ``begin`` and ``end`` are epochs here, and rounded to whole
        iterations: an epoch need not be a whole number of updates.
        """
        if not (by_epoch and epoch_length and count == 'iters'):
            raise ConfigError(
                'convert_to_iter_based=True turns epochs into iterations, '
                f'but got by_epoch={by_epoch}, count={count!r} and '
                f'{epoch_length} iterations an epoch: drop one of the two.'
            )
        for name in cls._LENGTHS:
            if name in kwargs:
                kwargs[name] = round(kwargs[name] * epoch_length)
        kwargs |= dict(by_epoch=False, count='iters')
        return cls(*args, **kwargs)

    def _shape(self, start: Fraction, progress: Fraction) -> Fraction:
        """Return the value at ``0 < progress < 1``, in units of the end's.

        So is ``start``, which is not 1.
        """
        raise NotImplementedError

    def step(self) -> None:
        """Count what was done and write the value for the next update.

        MMEngine's own ``step`` counts calls, never writes at ``end``, and
        warns if the optimizer has not stepped yet, which under gradient
        accumulation is every time.
        """
        done = self._global_step
        self._global_step += self._new_steps()
        if self._global_step == done:
            return
        groups = self.optimizer.param_groups
        if self.begin <= self._global_step and done < self.end:
            if done >= 0:
                self._check_others()
            self.last_step = min(self._global_step, self.end) - self.begin
            values = self._get_value()
            for group, value in zip(groups, values, strict=True):
                group[self.param_name] = value
        self._last_value = self._found()

    def _found(self) -> list[float]:
        return [g[self.param_name] for g in self.optimizer.param_groups]

    def _check_others(self) -> None:
        # Not earlier: all schedulers are built when the first one steps.
        if self._watched is None:
            self._watched = dict.fromkeys(schedulers_of(self.optimizer), -1)
        touched = self._others_factor is not None and any(
            map(is_not, self._found(), self._last_value)
        )
        for other, before in self._watched.items():
            refuse_if_written(self, other, before, touched)
            self._watched[other] = other.last_step

    def _new_steps(self) -> int:
        """Count what was done since the last call, in ``begin``'s unit."""
        if self.count != 'updates':
            return 1
        seen, self._calls = self._calls, steps_counted(self.optimizer)
        # It starts again from -1 when another scheduler is built.
        return self._calls - (seen if seen <= self._calls else -1)

    def _get_value(self) -> list[float]:
        """Return the groups' values at ``t = last_step``."""
        self._others_factor = self._factors_of_others()
        progress = Fraction(self.last_step, self.end - self.begin)
        return [
            float(self._own_value(base, progress)) * others
            for base, others in zip(
                self.base_values, self._others_factor, strict=True
            )
        ]

    def _own_value(self, base: float, progress: Fraction) -> Fraction:
        start = end = Fraction(base)
        if self.start_factor is not None:
            start = end * Fraction(self.start_factor)
        elif base:
            start = Fraction(self.start_value or 0)
            end = Fraction(base if self.end_value is None else self.end_value)
        # The ends by a special case, whatever the rounding of a shape.
        if progress == 1 or start == end:
            return end
        if progress == 0:
            return start
        return end * self._shape(start / end, progress)

    def _factors_of_others(self) -> list[float]:
        """Return, per group, what others have multiplied the value by.

        MMEngine's schedulers multiply the value that they find in the group.
        The ratio of what is there now to what the warm-up wrote is theirs.
        """
        bases = self.base_values
        before, written = [1.0] * len(bases), bases
        if self._others_factor is not None:
            before, written = self._others_factor, self._last_value
        # A group with base 0 stays at 0: no factor to keep.
        return [
            factor * self._ratio(now, then) if base else 1.0
            for base, factor, now, then in zip(
                bases, before, self._found(), written, strict=True
            )
        ]

    def _ratio(self, found: float, written: float) -> float:
        # 0 times gamma is 0, so the number does not tell whether somebody
        # multiplied it. The object does: a scheduler with nothing to do puts
        # back the very float that it took.
        if found is written:
            return 1.0
        if found == 0 or written == 0:
            raise ConfigError(
                f'{type(self).__name__}: another scheduler or hook set '
                f'{self.param_name} from {written} to {found} by step '
                f'{self._global_step}, inside the warm-up: at the value 0 its '
                'factor is lost. Move that milestone, put the warm-up first '
                'in param_scheduler, or use start_factor > 0.'
            )
        return found / written

    def state_dict(self) -> dict:
        """Return the state in plain numbers, strings and lists of them."""
        if self.begin <= self._global_step < self.end:
            # A factor lost at the value 0 could not be told any more by who
            # loads this.
            self._factors_of_others()
        state = super().state_dict()
        # Of this process, not of the training.
        del state['_calls'], state['_watched']
        return state | dict(type=type(self).__name__, found=self._found())

    def load_state_dict(self, state_dict: dict) -> None:
        """Continue from a checkpoint, whose settings and values rule.

        Load the optimizer's state first, as the Runner does.
        """
        state, name = dict(state_dict), type(self).__name__
        if (
            state.pop('type', None) != name
            or state['param_name'] != self.param_name
            or len(state['base_values']) != len(self.base_values)
        ):
            raise ConfigError(
                f'{name} for {self.param_name} of {len(self.base_values)} '
                'parameter groups cannot resume from the state of another '
                'scheduler or optimizer. Keep param_scheduler, optim_wrapper '
                'and model as they were when the checkpoint was saved.'
            )
        found = state.pop('found')
        names = *self._LENGTHS, 'count', 'start_factor', 'start_value'
        base = f'base {self.param_name}'
        own, saved = (
            values | {base: sorted(set(values['base_values']))}
            for values in (vars(self), state)
        )
        changed = [
            f'{key} is {saved[key]} (config: {own[key]})'
            for key in (*names, 'end_value', base)
            if saved[key] != own[key]
        ]
        if changed:
            print_log(
                f'{name} resumes with what the checkpoint says, not the '
                f'config: {", ".join(changed)}.',
                logger='current',
                level=logging.WARNING,
            )
        super().load_state_dict(state)
        for group, value, written in zip(
            self.optimizer.param_groups, found, self._last_value, strict=True
        ):
            # The optimizer may still hold what our __init__, or another's,
            # wrote over the loaded value. One object for what is the same
            # value: see _ratio.
            group[self.param_name] = written if value == written else value
