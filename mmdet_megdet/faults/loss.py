# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A loss is NaN or infinite, on some rank.

All ranks find out between forward and backward, and either all raise or all
skip the update: :class:`FiniteLossHook`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..errors import ConfigError, NonFiniteLossError
from ..runtime import image_names
from ..sync_bn import world_size
from ..updates import SkipUpdate, UpdateTrainLoop, place_of

# Key in the message hub, and so in every checkpoint.
_SKIPPED = 'skipped_updates'
_LARGEST = torch.finfo(torch.float32).max


@HOOKS.register_module()
class FiniteLossHook(Hook):
    """On a NaN or infinite loss, stop all ranks; or skip the update on all.

    Contract:

    - Every loss of every rank is looked at in every micro-step, between
      forward and backward, and the ranks agree by an all-reduce of one
      number. Weights, the optimizer's state and gradients never see it.
    - All ranks say the same: which loss is what, on which rank, in which
      update and micro-step, with the ids of that rank's images.
    - ``on_failure='raise'``: all of them raise
      :class:`~mmdet_megdet.errors.NonFiniteLossError`.
    - ``on_failure='skip'``: all of them leave out the whole update, which
      needs ``UpdateTrainLoop``. Weights, the optimizer's state, GradScaler's
      scale and norm layers' running statistics stay as they were. It counts,
      for all schedulers and for an EMA alike. Skipped updates are counted over
      the whole training, resumed parts included, and limited.

    Gradients that overflow in mixed precision are GradScaler's business, as
    before. docs/faults.md says what the hook costs.

    Args:
        on_failure (str): 'raise' or 'skip'. Defaults to 'raise'.
        max_skips (int): How many updates may be skipped before it raises
            after all. Defaults to 10.

    Raises:
        ConfigError: Before training, if updates are to be skipped under
            another loop.

    Examples:
        >>> default_hooks = dict(finite_loss=dict(
        ...     type='FiniteLossHook', on_failure='skip', max_skips=5))
    """

    def __init__(
        self,
        on_failure: Literal['raise', 'skip'] = 'raise',
        max_skips: int = 10,
    ) -> None:
        if on_failure not in ('raise', 'skip'):
            raise ConfigError(
                f"FiniteLossHook: on_failure={on_failure!r} is neither 'raise'"
                " nor 'skip'."
            )
        self.on_failure = on_failure
        self.max_skips = max_skips
        self._handle: RemovableHandle | None = None

    def before_train(self, runner: Runner) -> None:
        """Attach the check of the losses to the model."""
        self._runner = runner
        self._device = next(runner.model.parameters()).device
        if self.on_failure == 'skip' and not isinstance(
            runner.train_loop, UpdateTrainLoop
        ):
            raise ConfigError(
                "FiniteLossHook: on_failure='skip' leaves out an update, and "
                f'{type(runner.train_loop).__name__} knows micro-batches. Set '
                "train_cfg.type='UpdateTrainLoop' and train_dataloader."
                "batch_sampler=dict(type='UpdateBatchSampler'), or use "
                "on_failure='raise'."
            )
        self._handle = runner.model.register_forward_hook(self._check)

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None
    ) -> None:
        """Remember the batch, which an error would name."""
        self._batch_idx, self._step, self._batch = batch_idx, 0, data_batch

    def before_micro_step(
        self, runner: Runner, index: int, data_batch: Any
    ) -> None:
        """Remember the batch, which an error would name."""
        self._step, self._batch = index, data_batch

    def after_train(self, runner: Runner, **_: Any) -> None:
        """Detach the check from the model."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    on_error = after_train

    def _check(self, model: nn.Module, _: Any, output: Any) -> None:
        """Look between forward and backward; a collective."""
        if not model.training:
            return
        losses = named_losses(output)
        flag = not_finite(losses, self._device)
        if world_size() > 1:
            # On the default group: no gradients travel yet.
            dist.all_reduce(flag, dist.ReduceOp.MAX)
        if not flag.item():
            return
        text = self._describe(losses)
        if self.on_failure == 'raise':
            raise NonFiniteLossError(
                f'{text} No weight has seen it. If it is these images, look '
                'at their annotations; if it comes early, at the learning '
                'rate and the warm-up. '
                "default_hooks.finite_loss.on_failure='skip' leaves such "
                'updates out.'
            )
        self._skip(text)

    def _describe(self, losses: dict[str, Tensor]) -> str:
        """Say what is wrong on which ranks, the same on all; a collective."""
        own = describe_not_finite(losses), image_names(self._batch)
        found = [
            f'{wrong} on rank {rank}, with '
            + (f'images {", ".join(images)}' if images else 'unnamed images')
            for rank, (wrong, images) in enumerate(all_gather_object(own))
            if wrong
        ]
        place = place_of(self._runner, self._batch_idx, self._step)
        return f'FiniteLossHook: in {place}: {"; ".join(found)}.'

    def _skip(self, text: str) -> None:
        hub = self._runner.message_hub
        skipped = hub.get_info(_SKIPPED, 0) + 1
        if skipped > self.max_skips:
            raise NonFiniteLossError(
                f'{text} {self.max_skips} updates of this training have '
                'been skipped already, which is the limit (max_skips). '
                'Look for the cause.'
            )
        hub.update_info(_SKIPPED, skipped)
        hub.update_scalar(f'train/{_SKIPPED}', skipped, resumed=False)
        print_log(
            f'{text} The update is skipped, number {skipped} of at most '
            f'{self.max_skips}.',
            logger='current',
            level=logging.WARNING,
        )
        raise SkipUpdate


def named_losses(output: Any) -> dict[str, Tensor]:
    """Return what MMEngine's ``BaseModel.parse_losses`` sums up.

    Scalars by name, ``name[i]`` in lists; none where the output of the model
    is no mapping.
    """
    found: dict[str, Tensor] = {}
    for name, value in output.items() if isinstance(output, Mapping) else ():
        if 'loss' not in name:
            continue
        if isinstance(value, Tensor):
            found[name] = value.detach().float().mean()
            continue
        for index, part in enumerate(value):
            found[f'{name}[{index}]'] = part.detach().float().mean()
    return found


def not_finite(losses: Mapping[str, Tensor], device: torch.device) -> Tensor:
    """Return 1 if one of them, or their sum, is NaN or infinite, else 0.

    A tensor of shape (1,) on the device; nothing waits for it.
    """
    if not losses:
        return torch.zeros(1, dtype=torch.int32, device=device)
    total = torch.stack(list(losses.values())).sum()
    return torch.isfinite(total).logical_not().int().reshape(1)


def describe_not_finite(losses: Mapping[str, Tensor]) -> str:
    """Return the names of NaN or infinite losses; waits for the device."""
    values = {name: float(loss) for name, loss in losses.items()}
    values['the sum of losses'] = sum(values.values())
    texts = [
        f'{name} is {value:g}'
        for name, value in values.items()
        if not -_LARGEST <= value <= _LARGEST
    ]
    # The sum says something of its own only where all its parts are finite.
    return ', '.join(texts[:-1] or texts)
