# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What all warm-ups share: what is counted, what is written, how they resume.

The shapes are subclasses; what may run beside a warm-up is in
:mod:`.conflicts`.
"""

from __future__ import annotations

import logging
import math
from fractions import Fraction
from typing import Any, Literal

from mmengine.logging import print_log
from mmengine.optim import OptimWrapper, OptimWrapperDict, _ParamScheduler
from mmengine.optim.scheduler.momentum_scheduler import MomentumSchedulerMixin
from mmengine.optim.scheduler.param_scheduler import INF, OptimizerType
from torch.optim import Optimizer

from ..errors import ConfigError
from ..upstream.mmengine_names import steps_counted
from .conflicts import ConflictWatch


class WarmupParamScheduler(_ParamScheduler):
    """What all warm-ups share; their shapes are subclasses.

    Contract:

    - **Units.** ``begin`` and ``end`` count optimizer updates: calls of the
      ``OptimWrapper``'s ``step``, one after every ``accumulative_counts``
      iterations and one for what is left at the end of training, those that
      a gradient scaler skips included. So a warm-up of 1000 updates lasts as
      long on any hardware. With ``count='iters'`` they count iterations, as
      MMEngine's schedulers do, and with ``by_epoch=True`` epochs. The Runner
      calls :meth:`step` after every iteration (or epoch); nobody else does.
    - **Values.** Update ``begin + t`` (counted from 0) uses the shape's value
      at ``t`` of ``T = end - begin``, within ``2**-51`` of the larger end's
      value. It stays the same during the iterations of one update.
    - **Ends.** Before ``begin`` nothing is written. Update ``begin`` uses
      the start value and update ``end`` the end value, both bit for bit.
      Afterwards nothing is written. The start value is ``start_factor``
      times the group's own value in the optimizer, and the end value is the
      group's own value, so multipliers of parameter groups are kept.
      ``start_value`` and ``end_value`` name them instead, the same for
      every group; a group whose own value is 0 (frozen) stays at 0.
    - **Other schedulers** that multiply the value before or during the
      warm-up, as ``MultiStepLR`` does, keep their effect, in any order. A
      factor that meets the value 0 would be lost: that is an error. Those
      that set the value or add to it, as ``CosineRestartLR`` does, may run
      before and after a warm-up; during it they are an error that names
      both.
    - **Resume** continues exactly, at any step, also where
      ``accumulative_counts`` is not what it was: at the same update. The
      checkpoint's settings and base values rule; where the config says
      otherwise, the log warns.

    Args:
        optimizer (OptimWrapper or Optimizer): Optimizer, wrapped or not. The
            Runner gives each wrapper of an ``OptimWrapperDict`` its own.
        param_name (str): Key in the optimizer's ``param_groups``.
        start_factor (float, optional): Factor of the group's value at
            ``begin``, in [0, 1]. Defaults to None: 0.001 unless
            ``start_value`` is given.
        begin (int): First step of the warm-up. Defaults to 0.
        end (int): Step that uses the end value. Required. (Runner fills a
            missing ``end`` with the length of the whole training.)
        by_epoch (bool): Whether to step once an epoch. For a warm-up given
            in epochs that rises with every iteration, add
            ``convert_to_iter_based=True`` in the config: it is then kept in
            iterations. Defaults to False.
        count (str): What ``begin`` and ``end`` count unless ``by_epoch``:
            'updates' or 'iters'. Defaults to 'updates'.
        start_value (float, optional): Value at ``begin``, instead of
            ``start_factor``. Defaults to None.
        end_value (float, optional): Value at ``end`` and after, with
            ``start_value``. Defaults to None: the group's own.

    Raises:
        ConfigError: For values that contradict each other or are out of
            range, or an optimizer whose updates cannot be counted.
    """

    # Arguments that are lengths, which may be given in epochs.
    _LENGTHS: tuple[str, ...] = ('begin', 'end')
    _watch: ConflictWatch | None = None
    # What changes from step to step; all other state comes from the config.
    _PROGRESS = frozenset(
        {'last_step', '_global_step', '_last_value', '_others_factor'}
    )

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
        _check_count(count, by_epoch)
        self._check_arguments(begin, end)
        _check_optimizer(optimizer, self.count)
        # Per group, what other schedulers have multiplied the value by.
        # None until begin, where it is first measured.
        self._others_factor: list[float] | None = None
        # Calls of optimizer.step seen. MMEngine's __init__ sets its count to
        # -1 and then steps once, for step 0.
        self._calls = -2
        super().__init__(
            optimizer, param_name, begin=begin, end=end, by_epoch=by_epoch
        )
        if end_value is not None and len(set(self.base_values) - {0}) > 1:
            raise ConfigError(
                f'end_value={end_value} is one value for all parameter '
                f'groups, but their own {param_name} differs: '
                f'{sorted(set(self.base_values))}. Leave end_value out to '
                'end at their own values.'
            )

    def _check_arguments(self, begin: int, end: int) -> None:
        _check_range(begin, end)
        _check_values(self.start_factor, self.start_value, self.end_value)

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

        ``begin`` and ``end`` are epochs here; a part of one is rounded to
        the nearest iteration. They are kept in iterations: an epoch need not
        be a whole number of updates. The Runner gives ``epoch_length``.
        """
        if not by_epoch or count != 'iters':
            raise ConfigError(
                'convert_to_iter_based=True turns epochs into iterations, '
                f'but got by_epoch={by_epoch}, count={count!r}. Drop one of '
                'the two.'
            )
        if not epoch_length or epoch_length < 1:
            raise ConfigError(
                'epoch_length must be the number of iterations in an epoch, '
                f'but got {epoch_length!r}'
            )
        for name in cls._LENGTHS:
            if name in kwargs and kwargs[name] < INF:
                kwargs[name] = round(kwargs[name] * epoch_length)
        kwargs |= dict(by_epoch=False, count='iters')
        return cls(*args, **kwargs)

    def _shape(
        self, start: Fraction, end: Fraction, progress: Fraction
    ) -> Fraction:
        """Return the value at ``0 < progress < 1``; ``start != end``."""
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
        self._last_value = [group[self.param_name] for group in groups]

    def _check_others(self) -> None:
        # Not earlier: all schedulers are built when the first one steps.
        if self._watch is None:
            self._watch = ConflictWatch(self)
        groups = self.optimizer.param_groups
        touched = self._others_factor is not None and any(
            group[self.param_name] is not written
            for group, written in zip(groups, self._last_value, strict=True)
        )
        self._watch.check(self, touched)

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
        start, end = self._ends(Fraction(base))
        # The ends by a special case, whatever the rounding of a shape.
        if progress == 1 or start == end:
            return end
        return start if progress == 0 else self._shape(start, end, progress)

    def _ends(self, base: Fraction) -> tuple[Fraction, Fraction]:
        if self.start_factor is not None:
            return base * Fraction(self.start_factor), base
        if base == 0 or self.start_value is None:
            return base, base
        end = base if self.end_value is None else Fraction(self.end_value)
        return Fraction(self.start_value), end

    def _factors_of_others(self) -> list[float]:
        """Return, per group, what others have multiplied the value by.

        MMEngine's schedulers multiply the value that they find in the group.
        The ratio of what is there now to what the warm-up wrote is theirs.

        Raises:
            ConfigError: If that cannot be told, at the value 0.
        """
        bases = self.base_values
        if self._others_factor is None:
            before, written = [1.0] * len(bases), bases
        else:
            before, written = self._others_factor, self._last_value
        found = [
            group[self.param_name] for group in self.optimizer.param_groups
        ]
        # A group with base 0 stays at 0: no factor to keep.
        return [
            factor * self._ratio(i, now, then) if bases[i] else 1.0
            for i, (factor, now, then) in enumerate(
                zip(before, found, written, strict=True)
            )
        ]

    def _ratio(self, group: int, found: float, written: float) -> float:
        # 0 times gamma is 0, so the number does not tell whether somebody
        # multiplied it. The object does: a scheduler with nothing to do puts
        # back the very float that it took.
        if found is written:
            return 1.0
        if found == 0 or written == 0:
            raise ConfigError(
                f'{type(self).__name__}: another scheduler or hook set '
                f'{self.param_name} of parameter group {group} from '
                f'{written} to {found} by step {self._global_step}, inside '
                f'the warm-up from {self.begin} to {self.end}. At the value '
                '0 its factor is lost. Move that milestone, put the warm-up '
                'first in param_scheduler, or use start_factor > 0.'
            )
        return found / written

    def state_dict(self) -> dict:
        """Return the state in plain numbers, strings and lists of them."""
        if self.begin <= self._global_step < self.end:
            # A factor lost at the value 0 could not be told any more by who
            # loads this.
            self._factors_of_others()
        state = super().state_dict()
        # How often this process has called step is not how often training
        # has.
        del state['_calls']
        state.pop('_watch', None)
        return state | dict(
            type=type(self).__name__,
            found=[g[self.param_name] for g in self.optimizer.param_groups],
        )

    def load_state_dict(self, state_dict: dict) -> None:
        """Continue from a checkpoint, whose settings and values rule.

        Load the optimizer's state first, as the Runner does.

        Raises:
            ConfigError: If it is the state of another kind of scheduler, or
                of other parameter groups.
        """
        state = dict(state_dict)
        self._compare(state)
        del state['type']
        found = state.pop('found')
        super().load_state_dict(state)
        for group, value, written in zip(
            self.optimizer.param_groups, found, self._last_value, strict=True
        ):
            # The optimizer may still hold what our __init__, or another's,
            # wrote over the loaded value. One object for what is the same
            # value: see _ratio.
            group[self.param_name] = written if value == written else value

    def _compare(self, state: dict) -> None:
        """Refuse a state of something else; warn of settings that differ."""
        own = vars(self)
        name, param_name = type(self).__name__, self.param_name
        if (
            state.get('type') != name
            or state['param_name'] != param_name
            or len(state['base_values']) != len(self.base_values)
        ):
            raise ConfigError(
                f'{name} for {param_name} of {len(self.base_values)} '
                'parameter groups cannot resume from the state of another '
                'scheduler or optimizer. Keep param_scheduler, optim_wrapper '
                'and model as they were when the checkpoint was saved.'
            )
        settings = own.keys() & state.keys() - self._PROGRESS - {'base_values'}
        pairs = [(key, state[key], own[key]) for key in sorted(settings)]
        bases = zip(state['base_values'], self.base_values, strict=True)
        pairs += [
            (f'base {param_name}', *both) for both in dict.fromkeys(bases)
        ]
        changes = [
            f'{what} is {theirs} (config: {ours})'
            for what, theirs, ours in pairs
            if theirs != ours
        ]
        if changes:
            print_log(
                f'{name} resumes with what the checkpoint says, not the '
                f'config: {", ".join(changes)}. To train with the changed '
                'config, start from the weights alone (load_from without '
                'resume).',
                logger='current',
                level=logging.WARNING,
            )


class LRWarmupMixin:
    """Make a warm-up one of the learning rate."""

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
    """Make a warm-up one of SGD's momentum or of Adam's beta_1."""

    def load_state_dict(self, state_dict: dict) -> None:
        """Continue from a checkpoint, Adam's betas included."""
        super().load_state_dict(state_dict)
        if self.use_betas:
            for group in self.optimizer.param_groups:
                group['betas'] = (group['momentum'], *group['betas'][1:])


def check_steps(**steps: int) -> None:
    """Refuse numbers of steps, given by name, that are no ints."""
    for name, value in steps.items():
        if type(value) is not int:
            raise ConfigError(
                f'{name} must be an int, a number of steps, but got '
                f'{name}={value!r}'
            )


def _check_count(count: str, by_epoch: bool) -> None:
    if count not in ('updates', 'iters') or (by_epoch and count == 'iters'):
        raise ConfigError(
            "count is 'updates' or 'iters', and with by_epoch=True is left "
            f'out, but got count={count!r}, by_epoch={by_epoch}'
        )


def _check_range(begin: int, end: int) -> None:
    check_steps(begin=begin, end=end)
    if end >= INF:
        raise ConfigError(
            'end is required: give the step at which the warm-up is to '
            f'reach its end value, but got end={end}'
        )
    if not 0 <= begin < end:
        raise ConfigError(
            f'a warm-up needs 0 <= begin < end, but got begin={begin}, '
            f'end={end}'
        )


def _check_values(
    factor: float | None, start: float | None, end: float | None
) -> None:
    if (factor is None) == (start is None) or (
        factor is not None and end is not None
    ):
        raise ConfigError(
            'give start_factor (a factor of the base value), or start_value '
            'with or without end_value (absolute values), but got '
            f'start_factor={factor}, start_value={start}, end_value={end}'
        )
    if factor is not None and not 0 <= factor <= 1:
        raise ConfigError(
            'start_factor is a factor of the base value and must be in '
            f'[0, 1], but got {factor}'
        )
    if start is not None and not 0 <= start < math.inf:
        raise ConfigError(
            f'start_value must be finite and >= 0, but got {start}'
        )
    if end is not None and not 0 < end < math.inf:
        raise ConfigError(f'end_value must be finite and > 0, but got {end}')


def _check_optimizer(optimizer: OptimizerType, count: str) -> None:
    if isinstance(optimizer, OptimWrapperDict):
        raise ConfigError(
            'a warm-up schedules one optimizer, but got an OptimWrapperDict: '
            f'build one warm-up for each of {list(optimizer.keys())}, as the '
            'Runner does.'
        )
    if count == 'updates' and not isinstance(
        optimizer, OptimWrapper | Optimizer
    ):
        raise ConfigError(
            f'the updates of a {type(optimizer).__name__}, which is no '
            "OptimWrapper, cannot be counted. With count='iters' the warm-up "
            'counts iterations.'
        )
