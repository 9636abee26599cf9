# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A training loop whose iteration is one optimizer update."""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Iterator, Sequence
from typing import Any

from mmengine.registry import LOOPS
from mmengine.runner import BaseLoop, Runner
from mmengine.runner.utils import calc_dynamic_intervals
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..errors import ConfigError
from ..upstream.mmengine_names import (
    count_skipped_update,
    has_seed_of_each_rank,
    set_accumulation,
)
from .batch_sampler import count_updates, update_sampler
from .log import add_data_time, mean_outputs
from .random_streams import seed_by_image, seed_generators
from .running_stats import RunningStatistics


class SkipUpdate(Exception):
    """Raised in a forward, on all ranks alike: leave this update out.

    Weights, gradients and running statistics stay, and the update counts.
    """


@LOOPS.register_module()
class UpdateTrainLoop(BaseLoop):
    """Train with one optimizer update of the total batch as the iteration.

    Contract:

    - ``runner.iter`` counts updates of ``total_batch_size`` images, as
      ``TotalBatchHook`` says, and so does everything that counts iterations.
      An update is made of micro-batches, by the OptimWrapper's accumulation.
    - Updates have the same images and random numbers on whatever hardware
      (``UpdateBatchSampler``), and a stopped run goes on with the next
      one on any that can split the batch.
    - Norm layers' running statistics move once an update.
    - Hooks get the first micro-batch as ``data_batch``, and as ``outputs``
      the mean of this rank's micro-batches. Those which have the methods are
      called around each micro-step too, ``before_micro_step(runner, index,
      data_batch)`` and ``after_micro_step``; and ``on_error(runner, error)``
      when training ends with an exception.

    Args:
        runner (Runner): The runner.
        dataloader (DataLoader or dict): With an ``UpdateBatchSampler``.
        max_epochs (int, optional): Length of the training in epochs...
        max_updates (int, optional): ...or in updates; one of the two.
        val_begin (int): Where validation begins, in the unit of the length.
        val_interval (int, optional): From one validation to the next.
            Defaults to None: 1 epoch, or 1000 updates.
        dynamic_intervals (list, optional): As MMEngine's loops take it.
    """

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict,
        max_epochs: int | None = None,
        max_updates: int | None = None,
        val_begin: int = 1,
        val_interval: int | None = None,
        dynamic_intervals: list[tuple[int, int]] | None = None,
    ) -> None:
        _check(runner, max_epochs, max_updates)
        super().__init__(runner, dataloader)
        self._sampler = update_sampler(self.dataloader)
        self._by_epoch = max_updates is None
        self._length: int = max_epochs or max_updates or 0
        self._epoch = self._iter = 0
        # Updates that were done when the epoch began.
        self.epoch_began = 0
        self.stop_training = False
        self.val_begin = val_begin
        if val_interval is None:
            val_interval = 1 if self._by_epoch else 1000
        self.val_interval = val_interval
        self.dynamic_milestones, self.dynamic_intervals = (
            calc_dynamic_intervals(self.val_interval, dynamic_intervals)
        )
        self._planner = _planner(runner)
        self.plan = self._planner.plan_for(runner, self.dataloader)
        self._configure_sampler()
        count_updates(self.dataloader)
        runner.visualizer.dataset_meta = getattr(
            self.dataloader.dataset, 'metainfo', None
        )

    @property
    def iter(self) -> int:
        """Updates that are done."""
        return self._iter

    @property
    def max_iters(self) -> int:
        """Updates of the whole training."""
        if not self._by_epoch:
            return self._length
        epochs = self._length - self._epoch
        return self.epoch_began + epochs * len(self.dataloader)

    @property
    def epoch(self) -> int:
        """Epochs that are done."""
        return self._epoch

    @property
    def max_epochs(self) -> int:
        """Epochs of the whole training; the last may be a part of one."""
        if self._by_epoch:
            return self._length
        updates = self._length - self.epoch_began
        return self._epoch - (-updates // len(self.dataloader))

    def go_on_in(self, epoch: int, began: int) -> None:
        """Choose the epoch, from 0, of the next update of a resumed run.

        ``began`` updates were done when it began.
        """
        self._epoch, self.epoch_began = epoch, began

    def run(self) -> nn.Module:
        """Train, from the update after the last one done."""
        try:
            self._run()
        except Exception as error:
            self.runner.call_hook('on_error', error=error)
            raise
        return self.runner.model

    def _run(self) -> None:
        runner, wrapper = self.runner, self.runner.optim_wrapper
        # Not earlier: the Runner tells the wrapper counts of updates, which
        # the wrapper would take for micro-steps.
        set_accumulation(wrapper, self.plan.accumulation)
        runner.call_hook('before_train')
        wrapper.initialize_count_status(
            runner.model,
            self._iter * self.plan.accumulation,
            self.max_iters * self.plan.accumulation,
        )
        self._statistics = RunningStatistics(runner.model)
        while self._done < self._length and not self.stop_training:
            self.run_epoch()
            if self._by_epoch:
                self._validate()
        runner.call_hook('after_train')

    @property
    def _done(self) -> int:
        return self._epoch if self._by_epoch else self._iter

    def run_epoch(self) -> None:
        """Make the updates of an epoch, or what is left of them."""
        first = self._iter - self.epoch_began
        end = min(len(self.dataloader), self.max_iters - self.epoch_began)
        # A resumed run has the seed of its checkpoint.
        self._configure_sampler()
        self._sampler.start_at(self._epoch, first)
        self.runner.call_hook('before_train_epoch')
        # Behind hooks that change the pipeline.
        seed_by_image(self.dataloader.dataset, self.runner.seed)
        self.runner.model.train()
        batches = iter(self.dataloader)
        for index in range(first, end):
            self.run_iter(index, batches)
            if not self._by_epoch:
                self._validate()
                if self.stop_training:
                    break
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1
        self.epoch_began = self._iter

    def run_iter(self, index: int, batches: Iterator[Sequence]) -> None:
        """Make the update at a place in its epoch, of the next batches."""
        runner, outputs, waited = self.runner, [], 0.0
        batch = first = next(batches)
        runner.call_hook(
            'before_train_iter', batch_idx=index, data_batch=first
        )
        self._statistics.begin()
        skipped = False
        for step in range(self.plan.accumulation):
            if step:
                began = time.time()
                batch = next(batches)
                waited += time.time() - began
            if skipped:
                continue
            try:
                outputs.append(self._micro_step(index, step, batch))
            except SkipUpdate:
                skipped = True
        if skipped:
            self._statistics.restore()
            runner.optim_wrapper.zero_grad()
            count_skipped_update(
                runner.optim_wrapper,
                (self._iter + 1) * self.plan.accumulation,
            )
        else:
            self._statistics.finish()
        add_data_time(runner, waited)
        runner.call_hook(
            'after_train_iter',
            batch_idx=index,
            data_batch=first,
            outputs=mean_outputs(outputs),
        )
        self._iter += 1

    def _micro_step(
        self, index: int, step: int, batch: Sequence
    ) -> dict[str, Tensor]:
        runner = self.runner
        place = self._sampler.first_position(step)
        seed_generators(runner.seed, self._epoch, index, place)
        runner.call_hook('before_micro_step', index=step, data_batch=batch)
        with self._statistics.micro_step(step):
            outputs = runner.model.train_step(
                batch, optim_wrapper=runner.optim_wrapper
            )
        runner.call_hook('after_micro_step', index=step, data_batch=batch)
        # Without the graph that hangs on them.
        return {
            name: value.detach() if isinstance(value, Tensor) else value
            for name, value in outputs.items()
        }

    def _configure_sampler(self) -> None:
        self._sampler.configure(
            self.plan,
            self._planner.unit_size,
            self.runner.seed,
            self.runner.rank,
        )

    def _validate(self) -> None:
        done = self._done
        step = bisect(self.dynamic_milestones, done + 1)
        self.val_interval = self.dynamic_intervals[step - 1]
        if (
            self.runner.val_loop is not None
            and done >= self.val_begin
            and (done % self.val_interval == 0 or done == self._length)
        ):
            self.runner.val_loop.run()
            self.runner.model.train()


def _check(
    runner: Runner, max_epochs: int | None, max_updates: int | None
) -> None:
    given = [n for n in (max_epochs, max_updates) if n is not None]
    if len(given) != 1 or type(given[0]) is not int or given[0] < 1:
        raise ConfigError(
            'UpdateTrainLoop takes one of max_epochs and max_updates, a '
            f'number from 1, but train_cfg has max_epochs={max_epochs} and '
            f'max_updates={max_updates}.'
        )
    if has_seed_of_each_rank(runner):
        raise ConfigError(
            'randomness.diff_rank_seed=True makes ranks lay out the data set '
            'differently. Remove it: random numbers depend on the image.'
        )


def _planner(runner: Runner) -> Any:
    """Return the hook that says the total batch: ``TotalBatchHook``."""
    for hook in runner.hooks:
        if hasattr(hook, 'plan_for'):
            return hook
    raise ConfigError(
        'UpdateTrainLoop makes updates of a total batch, which the config '
        'does not say. Set default_hooks.total_batch='
        "dict(type='TotalBatchHook', total_batch_size=256)."
    )
