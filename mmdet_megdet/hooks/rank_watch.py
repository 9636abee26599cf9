# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Says which rank is gone, and where each of them was."""

from __future__ import annotations

from mmengine.device import get_device
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import IterBasedTrainLoop, Runner
from torch import device, nn
from torch.distributed import group
from torch.optim import Optimizer

from ..runtime.rank_watch import RankWatch
from ..sync_bn.groups import group_timeout
from ..updates import UpdateTrainLoop
from .place import place_of

_TORCH_TIMEOUT = 1800.0  # gloo's, where the group does not tell its own


@HOOKS.register_module()
class RankWatchHook(Hook):
    """When ranks stop moving, let every log say which rank and in which step.

    Contract:

    - Each rank tells in the store by which the ranks met where it is: epoch,
      update, micro-step, and whether it loads data, is in forward, in
      backward, in the optimizer's step or in validation. (With GPUs that is
      the host's place; the device may be behind.)
    - A rank that has not moved for half of the collectives' timeout
      (``env_cfg.dist_cfg.timeout``) logs where it waits, which ranks give no
      sign of life and where they were last, and where the others are. It does
      not need the collective to return, and so speaks ahead of NCCL's
      watchdog, which ends the process.
    - A rank that fails logs where. If the error is one of a collective it
      also names the rank that is gone, or that failed before it. (This needs
      ``train_cfg.type='UpdateTrainLoop'``.)
    - It does not end a rank; the timeout does.

    A rank counts as gone when it gives no sign of life for a fifth of the
    timeout, at most 15 s. In ordinary training the hook costs a few writes of
    some 150 bytes to the store in an iteration, from a thread of its own.

    Examples:
        >>> default_hooks = dict(rank_watch=dict(type='RankWatchHook'))
    """

    # Behind other hooks, whose work counts for the step ahead of it; ahead of
    # PreemptionHook, which is 'LOWEST' and asks for the watch.
    priority = 95

    watch: RankWatch | None = None

    def before_train(self, runner: Runner) -> None:
        """Begin to watch; a collective."""
        self._runner = runner
        self._batch = self._step = 0
        self.watch = RankWatch(
            runner.rank, runner.world_size, _timeout(), runner.logger.error
        )
        self.watch.start()
        self._handles = [runner.model.register_forward_hook(self._forwarded)]
        for optimizer in _optimizers(runner):
            self._handles += [
                optimizer.register_step_pre_hook(self._stepping),
                optimizer.register_step_post_hook(self._stepped),
            ]

    def before_train_epoch(self, runner: Runner) -> None:
        """Note the place."""
        # Elsewhere than at its beginning an epoch goes on by these loops.
        loop = runner.train_loop
        if isinstance(loop, IterBasedTrainLoop):
            self._batch = loop.iter
        elif isinstance(loop, UpdateTrainLoop):
            self._batch = loop.iter - loop.epoch_began
        self._in_iteration('loading data')

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: object = None
    ) -> None:
        """Note the place."""
        self._batch = batch_idx
        self._in_iteration('forward')

    def before_micro_step(self, runner: Runner, index: int, **_) -> None:
        """Note the place."""
        self._step = index
        self._in_iteration('forward')

    def after_micro_step(self, runner: Runner, index: int, **_) -> None:
        """Note the place."""
        if index + 1 < runner.train_loop.plan.accumulation:
            self._step = index + 1
            self._in_iteration('loading data')

    def after_train_iter(self, runner: Runner, batch_idx: int, **_) -> None:
        """Note the place."""
        self._batch, self._step = batch_idx + 1, 0
        self._in_iteration('loading data')

    def after_train_epoch(self, runner: Runner) -> None:
        """Note the place."""
        self._batch = 0
        self._at(f'between epochs {runner.epoch + 1} and {runner.epoch + 2}')

    def before_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: object = None
    ) -> None:
        """Note the place."""
        self._at(
            f'validation after iteration {runner.iter}, batch '
            f'{batch_idx + 1} of {len(runner.val_dataloader)}'
        )

    def after_val_iter(self, runner: Runner, batch_idx: int, **_) -> None:
        """Note the place: after the last batch the metrics come."""
        if batch_idx + 1 == len(runner.val_dataloader):
            self._at(f'validation after iteration {runner.iter}, its metrics')

    def after_train(self, runner: Runner) -> None:
        """End the watch."""
        for handle in self._handles:
            handle.remove()
        self.watch.stop()

    def on_error(self, runner: Runner, error: Exception) -> None:
        """Tell where this rank fails, and because of whom."""
        if self.watch is not None:
            self.watch.fail(error)

    def _forwarded(self, model: nn.Module, *_: object) -> None:
        if model.training:
            self._in_iteration('backward')

    def _stepping(self, optimizer: Optimizer, *_: object) -> None:
        self._in_iteration("the optimizer's step")

    def _stepped(self, optimizer: Optimizer, *_: object) -> None:
        self._in_iteration('hooks after the step')

    def _in_iteration(self, phase: str) -> None:
        place = place_of(self._runner, self._batch, self._step)
        self._at(f'{place} ({phase})')

    def _at(self, place: str) -> None:
        # Validation may come without training.
        if self.watch is not None:
            self.watch.at(place)


def _timeout() -> float:
    if group.WORLD is None:
        return _TORCH_TIMEOUT
    timeout = group_timeout(group.WORLD, device(get_device()))
    return _TORCH_TIMEOUT if timeout is None else timeout.total_seconds()


def _optimizers(runner: Runner) -> list[Optimizer]:
    wrapper = runner.optim_wrapper
    if isinstance(wrapper, OptimWrapperDict):
        return [one.optimizer for one in wrapper.values()]
    return [wrapper.optimizer]
