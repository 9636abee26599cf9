# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The hook that monitors BatchNorm while a model trains."""

from __future__ import annotations

import logging
from typing import Any, Literal

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from .. import monitor
from ..errors import ConfigError, MegDetError
from ..ranks import check_same
from ..runtime import images_per_gpu

_LEVELS = dict(error=logging.ERROR, warning=logging.WARNING)
# What of a layer's row is drawn over time.
_CURVES = ('between_share', 'mean_drift', 'dead_channels', 'running_var_max')


class BNStatsError(MegDetError, RuntimeError):
    """The error with which ``on_failure='raise'`` stops training.

    Attributes:
        findings (list[monitor.Finding]): The errors found.
    """

    def __init__(
        self, iteration: int, findings: list[monitor.Finding]
    ) -> None:
        lines = [f'{f.check}: {f.message}' for f in findings]
        super().__init__(
            f'BNStatsMonitorHook, iteration {iteration}: ' + '\n'.join(lines)
        )
        self.findings = findings


@HOOKS.register_module()
class BNStatsMonitorHook(Hook):
    """Tell, while a model trains, whether its BatchNorm synchronises.

    Contract:

    - It looks at the first iteration of a run, resumed or not, and at every
      ``interval``-th after; at the others it does nothing. It changes
      nothing that training computes.
    - At a look all ranks exchange one vector, whose size depends on the
      model alone, by a single all-gather. From it all come to the same
      findings, and with ``on_failure='raise'`` all raise in the same
      iteration (only errors do).
    - It watches any model, in any wrapper: ``MegDetSyncBN`` by what the layer
      used, other BatchNorms by their input and running statistics.

    docs/monitor.md has the findings with their remedies, and the numbers:
    ``train/bn_*`` in the message hub, curves of each layer in the vis
    backends, everything in ``bn_stats.jsonl``.

    Args:
        interval (int): Iterations from one look to the next. Defaults to
            100.
        on_failure (str): 'warn' logs errors; 'raise' stops training with
            :class:`BNStatsError`, on every rank. Defaults to 'warn'.
        max_collective_share (float): Share of an iteration that BatchNorm's
            collectives may take. Defaults to 0.3.
        max_running_var (float): What a running variance may grow to.
            Defaults to 1e6: 65 standard deviations of 1000 are float16's
            largest number.

    Raises:
        ConfigError: Before training, on every rank, if ranks have different
            BatchNorm layers, or the Runner has two of these hooks.

    Examples:
        >>> custom_hooks = [dict(type='BNStatsMonitorHook', interval=100,
        ...                      on_failure='raise')]
    """

    # After an iteration ahead of whatever pools buffers, logs or saves.
    priority = 'HIGH'

    def __init__(
        self,
        interval: int = 100,
        on_failure: Literal['warn', 'raise'] = 'warn',
        max_collective_share: float = 0.3,
        max_running_var: float = 1e6,
    ) -> None:
        if type(interval) is not int or interval < 1:
            raise ConfigError(f'interval={interval!r} must be an int from 1.')
        if on_failure not in ('warn', 'raise'):
            raise ConfigError(
                f"on_failure={on_failure!r} must be 'warn' or 'raise'."
            )
        if not 0 < max_collective_share <= 1:
            raise ConfigError(
                f'max_collective_share={max_collective_share!r} must be above '
                '0, at most 1.'
            )
        if not max_running_var > 0:
            raise ConfigError(
                f'max_running_var={max_running_var!r} must be positive.'
            )
        self.interval = interval
        self.on_failure = on_failure
        self.max_collective_share = max_collective_share
        self.max_running_var = max_running_var
        self._probe: monitor.Probe | None = None  # None: nothing to watch
        self._images: int | None = None
        self._first = True
        self._logged: set[tuple] = set()

    def before_train(self, runner: Runner) -> None:
        """Find the BatchNorm layers, which must be alike on all ranks."""
        monitors = [h for h in runner.hooks if isinstance(h, type(self))]
        if len(monitors) > 1:
            raise ConfigError(
                'Several BNStatsMonitorHooks would listen to the same '
                'layers: set default_hooks.bn_stats instead of adding one.'
            )
        probe = monitor.Probe(runner.model)
        # Vectors of different sizes cannot be gathered.
        layers = {
            f'layer {name}': f'{type(layer).__name__} of '
            f'{layer.num_features} channels, number {place}'
            for place, (name, layer) in enumerate(
                zip(probe.names, probe.layers, strict=True), 1
            )
        }
        check_same(layers, 'BNStatsMonitorHook')
        self._first, self._logged = True, set()
        self._probe = probe if probe.layers else None
        if self._probe is None:
            _log('the model has no BatchNorm: nothing to watch.')
            return
        try:
            self._images = images_per_gpu(runner.train_dataloader)
        except ValueError:
            self._images = None
        self._record = monitor.open_record(runner.work_dir)
        if runner.rank == 0:
            self._record.resume(runner.iter)

    def before_train_iter(
        self, runner: Runner, *args: Any, **kwargs: Any
    ) -> None:
        """Attach the probe, if this iteration is to be measured."""
        if probe := self._due(runner):
            probe.attach()

    def after_train_iter(
        self, runner: Runner, *args: Any, **kwargs: Any
    ) -> None:
        """Detach the probe, exchange the numbers, and check them."""
        probe = self._due(runner)
        if probe is None:
            return
        probe.detach()
        numbers = monitor.decode(
            monitor.gather(monitor.encode(probe)), probe, self._images
        )
        findings = monitor.judge(
            numbers, self.max_collective_share, self.max_running_var
        )
        record = monitor.make_record(
            numbers, findings, runner.iter + 1, runner.epoch + 1
        )
        self._tell(runner, record)
        errors = [f for f in findings if f.level == 'error']
        if errors and self.on_failure == 'raise':
            raise BNStatsError(runner.iter + 1, errors)

    def on_error(self, runner: Runner, error: Exception) -> None:
        """Stop listening."""
        if self._probe is not None:
            self._probe.detach()

    def _due(self, runner: Runner) -> monitor.Probe | None:
        due = self._first or (runner.iter + 1) % self.interval == 0
        return self._probe if due else None

    def _tell(self, runner: Runner, record: monitor.Record) -> None:
        for name, value in monitor.aggregates(record).items():
            runner.message_hub.update_scalar(
                f'train/bn_{name}', value, resumed=False
            )
        if runner.rank == 0:
            self._record.append(record)
            curves = {
                f'bn/{row.name}/{name}': getattr(row, name)
                for row in record.layers
                for name in _CURVES
                if getattr(row, name) is not None
            }
            runner.visualizer.add_scalars(curves, step=record.iter)
            if self._first:
                _log(monitor.summary(record))
            for finding in record.findings:
                if finding.key() not in self._logged:
                    text = f'{finding.check}: {finding.message}'
                    _log(text, _LEVELS[finding.level])
        self._first = False
        self._logged = {finding.key() for finding in record.findings}


def _log(text: str, level: int = logging.INFO) -> None:
    print_log(f'BNStatsMonitorHook: {text}', logger='current', level=level)
