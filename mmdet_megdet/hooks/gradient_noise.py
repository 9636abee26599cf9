# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The gradient noise scale in the Runner, from training's own gradients."""

from __future__ import annotations

import math
from typing import Any

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.optim import ApexOptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .. import noise
from ..errors import ConfigError
from ..sync_bn import bn_group, world_size
from ..updates import UpdateTrainLoop
from ..upstream.torch_names import is_low_rank
from .unit_loss import UnitLossHook

# Of a checkpoint.
_KEY = 'gradient_noise'


@HOOKS.register_module()
class GradientNoiseHook(Hook):
    """Measure how large a batch the data reward, while a model trains.

    The gradient noise scale (McCandlish et al., 2018) is the batch at which
    the noise of the gradient is as large as the gradient.
    ``tools/analysis/noise_scale.py`` says what follows for the batch and the
    learning rate, docs/which_batch.md has the formulas.

    Contract:

    - It looks at every ``interval``-th update, at gradients that training
      computes anyway, ahead of clipping and without the loss scale. Nothing
      is attached between looks, and what is trained does not change.
    - What it compares are BN groups in micro-steps, which are independent
      under any BatchNorm; ranks of a BN group are not. An update that is one
      of them tells nothing, and is refused.
    - A measured update costs one all-reduce of a few numbers, or, where a BN
      group is several ranks, of sketches. A skipped one gives no measurement.
    - Measurements are the same on all ranks. They are in the checkpoint, and
      a resumed run goes on with them, on other hardware too.

    Each measurement is a line of ``grad_noise.jsonl``, by part of the model
    (``backbone``, ``roi_head.bbox_head``, ...); the total's noise scale goes
    into the vis backends, that of each part into the log of each epoch.

    Args:
        interval (int): Updates from one look to the next. Defaults to 20.
        decay (float): What a measurement weighs in the averages against the
            one after it. Defaults to 0.97: about 30 measurements count.

    Examples:
        >>> default_hooks = dict(
        ...     grad_noise=dict(type='GradientNoiseHook', interval=20))

    Attributes:
        parts (dict[str, list[nn.Parameter]]): What is trained of each part
            of the model; known once training begins.
        latest (dict[str, NoiseScale] or None): Noise scales after the
            present update, if that was measured.
    """

    def __init__(self, interval: int = 20, decay: float = 0.97) -> None:
        if type(interval) is not int or interval < 1:
            raise ConfigError(f'interval={interval!r} must be an int from 1.')
        if not 0 < decay < 1:
            raise ConfigError(f'decay={decay!r} must be between 0 and 1.')
        self.interval = interval
        self.parts: dict[str, list[nn.Parameter]] = {}
        self.latest: dict[str, noise.NoiseScale] | None = None
        self._running = noise.RunningNoise(decay)
        self._saved: dict | None = None
        self._meter: noise.GradientMeter | None = None

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Keep the checkpoint's measurements."""
        self._saved = checkpoint.get(_KEY)

    def before_train(self, runner: Runner) -> None:
        """Check that there will be something to measure; a collective."""
        _check(runner)
        self.parts = noise.parts_of(runner.model)
        bn_group(None, next(iter(self.parts.values()))[0].device)
        # Weights alone, loaded without resuming, begin a training.
        if runner.iter and self._saved is not None:
            self._running.load_state_dict(self._saved['measurements'])
        self._record = noise.open_record(runner.work_dir)
        self._meter = None
        if runner.rank == 0:
            self._record.resume(runner.iter)

    def before_train_iter(
        self, runner: Runner, *args: Any, **kwargs: Any
    ) -> None:
        """Attach the meter, if this update is to be measured."""
        self.latest = None
        if self._meter is None:
            # Not earlier: only now the layers are in the mode they train in.
            self._meter = noise.GradientMeter(self.parts, _split(runner))
        if meter := self._due(runner):
            meter.attach(runner.optim_wrapper, runner.iter)

    def before_micro_step(
        self, runner: Runner, *args: Any, **kwargs: Any
    ) -> None:
        """Tell the meter that a micro-step begins."""
        if meter := self._due(runner):
            meter.begin_micro_step()

    def after_train_iter(
        self, runner: Runner, *args: Any, **kwargs: Any
    ) -> None:
        """Detach the meter, and take the measurement; a collective."""
        meter = self._due(runner)
        if meter is None:
            return
        meter.detach()
        parts = meter.measure()
        if parts is None:
            return
        self._running.add(parts)
        self.latest = self._running.scales()
        if runner.rank == 0:
            self._record.append(
                noise.Measurement(
                    update=runner.iter + 1,
                    epoch=runner.epoch + 1,
                    total_batch_size=meter.split.images,
                    lr=float(runner.optim_wrapper.param_groups[0]['lr']),
                    parts={name: m._asdict() for name, m in parts.items()},
                    groups=meter.split.groups,
                    micro_steps=meter.split.micro_steps,
                    part_images=meter.split.part_images,
                )
            )
            curves = {
                f'gradient_noise/noise_scale{end}': number
                for end, number in zip(
                    ('', '_low', '_high'),
                    self.latest[noise.TOTAL],
                    strict=False,
                )
                if math.isfinite(number)
            }
            if curves:
                runner.visualizer.add_scalars(curves, step=runner.iter + 1)

    def after_train_epoch(self, runner: Runner) -> None:
        """Log the noise scales."""
        scales = self._running.scales()
        if not scales:
            return
        total = scales.pop(noise.TOTAL)
        lr = runner.optim_wrapper.param_groups[0]['lr']
        parts = ', '.join(f'{name} {scale}' for name, scale in scales.items())
        print_log(
            f'GradientNoiseHook: noise scale around update {runner.iter}, lr '
            f'{lr:.3g}, in images (95 % interval; {total.measurements} '
            f'measurements): total {total}; {parts}',
            logger='current',
        )

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Save the measurements, as plain numbers."""
        checkpoint[_KEY] = dict(measurements=self._running.state_dict())

    def on_error(self, runner: Runner, error: Exception) -> None:
        """Detach the meter from the model."""
        if self._meter is not None:
            self._meter.detach()

    def _due(self, runner: Runner) -> noise.GradientMeter | None:
        due = (runner.iter + 1) % self.interval == 0
        return self._meter if due else None


def _check(runner: Runner) -> None:
    """Refuse what cannot be measured, alike on all ranks."""
    wrapper, model = runner.optim_wrapper, runner.model
    hooks = [h for h in runner.hooks if isinstance(h, GradientNoiseHook)]
    # Sharded, as by FSDP, no rank has a parameter's whole gradient.
    sharded = is_model_wrapper(model) and not isinstance(
        model, DistributedDataParallel
    )
    unknown = isinstance(wrapper, OptimWrapperDict | ApexOptimWrapper)
    reason = None
    if not isinstance(runner.train_loop, UpdateTrainLoop):
        reason = "Set train_cfg.type='UpdateTrainLoop', which counts updates"
    elif len(hooks) > 1:
        reason = 'several in one run. Set default_hooks.grad_noise alone'
    elif sharded or unknown or is_low_rank(model):
        reason = (
            f'{type(wrapper).__name__} with {type(model).__name__} does not '
            'have whole gradients on every rank. Use OptimWrapper or '
            'AmpOptimWrapper, MegDetDistributedDataParallel, and no powerSGD'
        )
    elif not noise.parts_of(model):
        reason = 'nothing in the model is trained'
    if reason:
        raise ConfigError(f'GradientNoiseHook: {reason}.')


def _split(runner: Runner) -> noise.Split:
    """Return what is independent in an update; a single part is refused."""
    plan = runner.train_loop.plan
    by_losses = [h.ranks for h in runner.hooks if isinstance(h, UnitLossHook)]
    coupled = math.lcm(noise.coupled_ranks(runner.model), *by_losses)
    split = noise.Split(plan.accumulation, coupled, plan.total_batch_size)
    if split.micro_steps > 1 or split.groups > 1:
        return split
    raise ConfigError(
        'GradientNoiseHook has nothing to compare: an update of '
        f'{split.images} images is one BN group in one micro-step '
        f'({world_size()} ranks x {plan.images_per_gpu} images), and ranks '
        'within a BN group are not independent. Use --images-per-gpu or '
        '--bn-size with less, or a larger total batch.'
    )
