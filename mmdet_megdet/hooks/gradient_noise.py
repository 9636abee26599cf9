# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The gradient noise scale in the Runner, from training's own gradients."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.optim import ApexOptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import ConfigError
from ..monitor import JsonLines
from ..noise import (
    TOTAL,
    GradientMeter,
    ManyPiecesError,
    Measurement,
    Moments,
    NoiseScale,
    RunningNoise,
    Split,
    coupled_ranks,
    open_record,
    parts_as_json,
    parts_of,
)
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
    the noise of the gradient is as large as the gradient. Up to it a larger
    batch saves nearly as many updates as it costs images; beyond it images
    are wasted. ``tools/analysis/noise_scale.py`` says what follows for the
    batch and the learning rate.

    Contract:

    - It looks at every ``interval``-th update, at gradients that training
      computes anyway: no second backward, no change of what is trained, and
      nothing attached to the model between looks.
    - What it compares are BN groups in micro-steps, which are independent
      under any BatchNorm. Ranks of a BN group are not: each one's gradient
      depends on the others' images through the statistics, and the usual
      estimate from ranks' gradients comes out negative. An update that is
      one BN group in one micro-step tells nothing, and is refused. (Losses
      that all ranks normalise together, as FCOS's, couple ranks too, by
      little; that is not seen.)
    - A measured update costs one all-reduce: of a few numbers where BN
      groups are single ranks, else of a sketch of 1021 numbers for each part
      of the model, BN group and micro-step.
    - It measures each part of the model: ``backbone``, ``neck``,
      ``rpn_head``, ``roi_head.bbox_head``, ``roi_head.mask_head``, or
      whatever hangs on the model, as far as it is trained; and the total.
    - Gradients are those that the optimizer is to get, ahead of clipping,
      without the loss scale of mixed precision. An update that is skipped
      gives no measurement.
    - Noise scales are ratios of averages, with an interval. Measurements and
      averages are the same on all ranks. They are in the checkpoint, and a
      resumed run goes on with them, on other hardware too.

    Where the numbers go: each measurement as a line into
    ``grad_noise.jsonl`` in the work folder (a run that resumes goes on
    behind its checkpoint's update, and one that starts anew begins anew),
    the total's noise scale with its interval into the vis backends, and at
    the end of each epoch that of each part into the log.

    Args:
        interval (int): Updates from one look to the next. Defaults to 20.
        decay (float): What a measurement weighs in the averages against the
            one after it. Defaults to 0.97: about 30 measurements count.

    Raises:
        ConfigError: On every rank, ahead of the first update, if the
            training is such that nothing can be measured.

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
            raise ConfigError(
                f'GradientNoiseHook: interval={interval!r} must be an int '
                'from 1: updates from one measurement to the next.'
            )
        if not isinstance(decay, float) or not 0 < decay < 1:
            raise ConfigError(
                f'GradientNoiseHook: decay={decay!r} must be a float between '
                '0 and 1: what a measurement weighs against the one after it.'
            )
        self.interval = interval
        self.parts: dict[str, list[nn.Parameter]] = {}
        self.latest: dict[str, NoiseScale] | None = None
        self._running = RunningNoise(decay)
        self._saved: dict | None = None
        self._meter: GradientMeter | None = None
        # The same in a measured update.
        self._listening: GradientMeter | None = None

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Note the measurements so far."""
        self._saved = checkpoint.get(_KEY)

    def before_train(self, runner: Runner) -> None:
        """Check that there will be something to measure; a collective."""
        _check(runner)
        self.parts = parts_of(runner.model)
        if not self.parts:
            raise ConfigError(
                'GradientNoiseHook: the model has no parameter that is '
                'trained.'
            )
        bn_group(None, next(iter(self.parts.values()))[0].device)
        # Weights alone, loaded without resuming, begin a training.
        if runner.iter and self._saved is not None:
            self._running.load_state_dict(self._saved['measurements'])
        self._record = open_record(Path(runner.work_dir))
        self._meter, self._told = None, True
        if runner.rank == 0:
            self._record.resume(runner.iter)

    def before_train_iter(
        self, runner: Runner, *args: Any, **kwargs: Any
    ) -> None:
        """Begin to listen, if the update's turn has come."""
        self.latest = None
        if self._meter is None:
            # Not earlier: only now the layers are in the mode they train in.
            self._meter = GradientMeter(self.parts, _split(runner))
        if (runner.iter + 1) % self.interval == 0:
            self._listening = self._meter
            self._listening.attach(runner.optim_wrapper, runner.iter)

    def before_micro_step(
        self, runner: Runner, *args: Any, **kwargs: Any
    ) -> None:
        """Begin a micro-step."""
        if self._listening is not None:
            self._listening.begin_micro_step()

    def after_train_iter(
        self, runner: Runner, *args: Any, **kwargs: Any
    ) -> None:
        """Stop listening, and take the measurement; a collective."""
        meter = self._listening
        if meter is None:
            return
        self._stop()
        try:
            parts = meter.measure()
        except ManyPiecesError:
            raise ConfigError(
                "GradientNoiseHook: a parameter's gradient came in several "
                'pieces in one micro-step, as by re-entrant activation '
                'checkpointing of a module that is called more than once, '
                'and pieces cannot be measured. Use use_reentrant=False '
                'there, or leave the hook out.'
            ) from None
        if parts is None:
            return
        self._running.add(parts)
        self._told = False
        self.latest = self._running.scales()
        if runner.rank == 0:
            _record(runner, self._record, parts, meter.split)
            _draw(runner, self.latest[TOTAL])

    def after_train_epoch(self, runner: Runner) -> None:
        """Log the noise scales, if there are new ones."""
        if self._told:
            return
        self._told = True
        scales = self._running.scales()
        total = scales.pop(TOTAL)
        lr = runner.optim_wrapper.param_groups[0]['lr']
        print_log(
            f'GradientNoiseHook: noise scale around update {runner.iter}, lr '
            f'{lr:.3g}, in images (95 % interval; {total.measurements} '
            'measurements): total '
            f'{total}; '
            + ', '.join(f'{name} {scale}' for name, scale in scales.items()),
            logger='current',
        )

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Save the measurements, as plain numbers."""
        checkpoint[_KEY] = dict(measurements=self._running.state_dict())

    def on_error(self, runner: Runner, error: Exception) -> None:
        """Let go of the model."""
        self._stop()

    def _stop(self) -> None:
        if self._listening is not None:
            self._listening.detach()
            self._listening = None


def _record(
    runner: Runner, record: JsonLines, parts: dict[str, Moments], split: Split
) -> None:
    measurement = Measurement(
        update=runner.iter + 1,
        epoch=runner.epoch + 1,
        total_batch_size=split.images,
        lr=float(runner.optim_wrapper.param_groups[0]['lr']),
        parts=parts_as_json(parts),
        groups=split.groups,
        micro_steps=split.micro_steps,
        part_images=split.part_images,
    )
    record.append(dict(measurement))


def _draw(runner: Runner, total: NoiseScale) -> None:
    curves = {
        'gradient_noise/noise_scale': total.value,
        'gradient_noise/noise_scale_low': total.low,
        'gradient_noise/noise_scale_high': total.high,
    }
    curves = {name: v for name, v in curves.items() if math.isfinite(v)}
    if curves:
        runner.visualizer.add_scalars(curves, step=runner.iter + 1)


def _check(runner: Runner) -> None:
    """Refuse what cannot be measured, alike on all ranks."""
    if not isinstance(runner.train_loop, UpdateTrainLoop):
        raise ConfigError(
            'GradientNoiseHook measures whole updates, and under '
            f'{type(runner.train_loop).__name__} an iteration need not be '
            "one. Set train_cfg.type='UpdateTrainLoop' and "
            "train_dataloader.batch_sampler.type='UpdateBatchSampler'."
        )
    if len([h for h in runner.hooks if isinstance(h, GradientNoiseHook)]) > 1:
        raise ConfigError(
            'There are several GradientNoiseHooks. Where a base config has '
            'one in default_hooks, set that one: '
            'default_hooks.grad_noise.interval.'
        )
    wrapper, model = runner.optim_wrapper, runner.model
    if isinstance(wrapper, OptimWrapperDict | ApexOptimWrapper):
        raise ConfigError(
            'GradientNoiseHook works with one optimizer in OptimWrapper or '
            f'AmpOptimWrapper, and this is {type(wrapper).__name__}.'
        )
    if is_model_wrapper(model) and not isinstance(
        model, DistributedDataParallel
    ):
        raise ConfigError(
            'GradientNoiseHook needs gradients that are whole on every rank, '
            f'and {type(model).__name__} is none that keeps them. Use '
            "model_wrapper_cfg.type='MegDetDistributedDataParallel'."
        )
    if is_low_rank(model):
        raise ConfigError(
            'GradientNoiseHook: comm_hook powerSGD changes the gradient on '
            "its way, so its size would be wrong. Use 'fp16_compress', "
            "'bf16_compress' or none while measuring."
        )


def _split(runner: Runner) -> Split:
    """What is independent in an update.

    Raises:
        ConfigError: If that is a single part.
    """
    plan = runner.train_loop.plan
    by_losses = [h.ranks for h in runner.hooks if isinstance(h, UnitLossHook)]
    coupled = math.lcm(coupled_ranks(runner.model), *by_losses)
    split = Split(plan.accumulation, coupled, plan.total_batch_size)
    if split.micro_steps > 1 or split.groups > 1:
        return split
    ranks, remedies = world_size(), []
    if plan.images_per_gpu > 1:
        images = _below(plan.images_per_gpu)
        remedies.append(
            f'--images-per-gpu {images}, with a BN size of at most '
            f'{ranks * images}, which makes more micro-steps'
        )
    if ranks > 1:
        remedies.append(
            f'--bn-size {_below(ranks) * plan.images_per_gpu}, which makes '
            'more BN groups'
        )
    remedies.append('a larger total batch, which makes more micro-steps')
    raise ConfigError(
        'GradientNoiseHook has nothing to compare: an update of '
        f'{split.images} images is one BN group in one micro-step '
        f'({ranks} ranks x {plan.images_per_gpu} images), and ranks '
        'within a BN group are not independent. What would do: '
        f'{"; or ".join(remedies)}.'
    )


def _below(number: int) -> int:
    """The largest divisor below a number."""
    return max(n for n in range(1, number) if number % n == 0)
