# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The mechanism of all warm-up shapes: when to write, others, resume."""

from __future__ import annotations

import logging

from mmengine.logging import print_log
from mmengine.optim.scheduler.param_scheduler import (
    INF,
    OptimizerType,
    _ParamScheduler,
)


class WarmupParamScheduler(_ParamScheduler):
    """What all warm-up shapes share.

    A subclass sets its own parameters before it calls this ``__init__``,
    which already writes the first value, and implements :meth:`_factor`.
    """

    # What changes from step to step; all other state comes from the config.
    _PROGRESS = frozenset(
        {'last_step', '_global_step', '_last_value', '_others_factor'}
    )

    def __init__(
        self,
        optimizer: OptimizerType,
        param_name: str,
        begin: int,
        end: int,
        by_epoch: bool,
    ) -> None:
        for name, value in (('begin', begin), ('end', end)):
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(
                    f'{name} must be an int, a number of steps, but got '
                    f'{name}={value!r}'
                )
        if end >= INF:
            raise ValueError(
                'end is required: give the step at which the warm-up is to '
                f'reach the base value, but got end={end}'
            )
        if not 0 <= begin < end:
            raise ValueError(
                'a warm-up needs 0 <= begin < end, but got '
                f'begin={begin}, end={end}'
            )
        # Per group, what other schedulers have multiplied the value by.
        # None until begin, where it is first measured.
        self._others_factor: list[float] | None = None
        super().__init__(
            optimizer, param_name, begin=begin, end=end, by_epoch=by_epoch
        )

    @classmethod
    def build_iter_from_epoch(
        cls,
        *args,
        begin: float = 0,
        end: float = INF,
        by_epoch: bool = True,
        epoch_length: int | None = None,
        **kwargs,
    ) -> WarmupParamScheduler:
        """Build from epochs, as ``convert_to_iter_based=True`` asks for.

        ``begin`` and ``end`` are epochs here; a part of one is rounded to
        the nearest iteration. The Runner gives ``epoch_length``.
        """
        if not by_epoch:
            raise ValueError(
                'convert_to_iter_based=True needs begin and end in epochs, '
                'but got by_epoch=False. Drop one of the two.'
            )
        if not epoch_length or epoch_length < 1:
            raise ValueError(
                'epoch_length must be the number of iterations in an epoch, '
                f'but got {epoch_length!r}'
            )
        return cls(
            *args,
            begin=round(begin * epoch_length),
            end=end if end >= INF else round(end * epoch_length),
            by_epoch=False,
            **kwargs,
        )

    def _factor(self, t: int) -> float:
        """Factor of the base value for ``0 <= t < end - begin``."""
        raise NotImplementedError

    def step(self) -> None:
        """Count one step and write the value for the next one.

        mmengine's own ``step`` never writes at ``end``. It also warns if the
        optimizer has not stepped yet, which under gradient accumulation is
        every time.
        """
        self._global_step += 1
        groups = self.optimizer.param_groups
        if self.begin <= self._global_step <= self.end:
            self.last_step = self._global_step - self.begin
            values = self._get_value()
            for group, value in zip(groups, values, strict=True):
                group[self.param_name] = value
        self._last_value = [group[self.param_name] for group in groups]

    def _get_value(self) -> list[float]:
        """Values of the groups at ``t = last_step``."""
        t = self.last_step
        self._others_factor = self._measure_others()
        # 1.0 leaves the base value as it is, bit for bit, whatever the
        # rounding of a shape's formula.
        factor = 1.0 if t == self.end - self.begin else self._factor(t)
        return [
            base * factor * others
            for base, others in zip(
                self.base_values, self._others_factor, strict=True
            )
        ]

    def _measure_others(self) -> list[float]:
        """Take in what others did to the values since our last writing.

        mmengine's schedulers multiply the value that they find in the group.
        The ratio of what is there now to what we wrote is therefore theirs.
        """
        if self._others_factor is None:
            before, written = [1.0] * len(self.base_values), self.base_values
        else:
            before, written = self._others_factor, self._last_value
        found = [g[self.param_name] for g in self.optimizer.param_groups]
        # A group with base 0 stays at 0: no factor to keep.
        return [
            factor * self._ratio(i, now, then) if self.base_values[i] else 1.0
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
            raise ValueError(
                f'{type(self).__name__}: another scheduler or hook set '
                f'{self.param_name} of parameter group {group} from '
                f'{written} to {found} by step {self._global_step}, inside '
                f'the warm-up from {self.begin} to {self.end}. At the value '
                '0 its factor is lost. Move that milestone, put the warm-up '
                'first in param_scheduler, or use start_factor > 0.'
            )
        return found / written

    def state_dict(self) -> dict:
        """State in plain Python numbers, strings and lists of numbers."""
        if self.begin <= self._global_step < self.end:
            # A factor lost at the value 0 could not be told any more by who
            # loads this.
            self._measure_others()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict) -> None:
        """Continue from a checkpoint, whose settings and base values rule.

        Load the optimizer's state first, as the Runner does.

        Raises:
            ValueError: If it is the state of another kind of scheduler, or
                of other parameter groups.
        """
        name = type(self).__name__
        own = {k: v for k, v in vars(self).items() if k != 'optimizer'}
        if (
            own.keys() - state_dict.keys()
            or state_dict['param_name'] != self.param_name
            or len(state_dict['base_values']) != len(self.base_values)
        ):
            raise ValueError(
                f'{name} for {self.param_name} of {len(self.base_values)} '
                'parameter groups cannot resume from the state of another '
                'scheduler or optimizer. Keep param_scheduler, optim_wrapper '
                'and model as they were when the checkpoint was saved.'
            )
        settings = sorted(own.keys() - self._PROGRESS - {'base_values'})
        pairs = [(key, state_dict[key], own[key]) for key in settings]
        for both in dict.fromkeys(
            zip(state_dict['base_values'], self.base_values, strict=True)
        ):
            pairs.append((f'base {self.param_name}', *both))
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
        super().load_state_dict(state_dict)
        groups = self.optimizer.param_groups
        for group, last, fresh in zip(
            groups, self._last_value, own['_last_value'], strict=True
        ):
            # The group may still hold what our __init__ wrote over it. And
            # _ratio compares objects, which were not loaded together.
            found = group[self.param_name]
            if found is fresh or found == last:
                group[self.param_name] = last
