# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A loss is NaN or infinite, on some rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from mmengine.dist import all_gather_object, all_reduce
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..errors import ConfigError, NonFiniteLossError
from ..runtime import image_names
from ..updates import SkipUpdate, UpdateTrainLoop, place_of

# Key in the message hub, and so in every checkpoint.
_SKIPPED = 'skipped_updates'
_LARGEST = torch.finfo(torch.float32).max


@HOOKS.register_module()
class FiniteLossHook(Hook):
    """On a NaN or infinite loss, stop all ranks; or skip the update on all.

    - Every loss of every rank is looked at in every micro-step, between
      forward and backward, and the ranks agree by an all-reduce of one
      number. Weights, the optimizer's state and gradients never see it.
    - All ranks say the same: which loss is what, on which rank, in which
      update and micro-step, with the ids of that rank's images.
    - Then all raise :class:`~mmdet_megdet.errors.NonFiniteLossError`, or skip
      the whole update, which needs ``UpdateTrainLoop``. It counts for all
      schedulers and for an EMA; nothing else sees it.

    Args:
        on_failure (str): 'raise' or 'skip'. Defaults to 'raise'.
        max_skips (int): How many updates of a training, resumed parts
            included, may be skipped before it raises. Defaults to 10.

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
        loop = runner.train_loop
        if self.on_failure == 'skip' and not isinstance(loop, UpdateTrainLoop):
            raise ConfigError(
                "FiniteLossHook: on_failure='skip' leaves out updates, which "
                f'{type(loop).__name__} cannot: set '
                "train_cfg.type='UpdateTrainLoop' and train_dataloader."
                "batch_sampler=dict(type='UpdateBatchSampler')."
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
        wrong = describe_not_finite(named_losses(output))
        somewhere = torch.tensor(int(wrong != ''))
        # On the default group: no gradients travel yet.
        all_reduce(somewhere, 'max')
        if not somewhere:
            return
        text = self._describe(wrong)
        if self.on_failure == 'raise':
            raise NonFiniteLossError(
                f'{text} No weight has seen it. Look at the annotations of '
                'these images; if it comes early, at the learning rate and '
                'the warm-up. '
                "default_hooks.finite_loss.on_failure='skip' leaves such "
                'updates out.'
            )
        self._skip(text)

    def _describe(self, wrong: str) -> str:
        """Say what is wrong on which ranks, the same on all; a collective."""
        by_rank = all_gather_object((wrong, image_names(self._batch)))
        found = [
            f'{text} on rank {rank}, with images '
            f'{", ".join(images) or "without names"}'
            for rank, (text, images) in enumerate(by_rank)
            if text
        ]
        place = place_of(self._runner, self._batch_idx, self._step)
        return f'FiniteLossHook: in {place}: {"; ".join(found)}.'

    def _skip(self, text: str) -> None:
        hub = self._runner.message_hub
        skipped = hub.get_info(_SKIPPED, 0) + 1
        if skipped > self.max_skips:
            raise NonFiniteLossError(
                f'{text} {self.max_skips} updates of this training are '
                'skipped already, which is the limit (max_skips).'
            )
        hub.update_info(_SKIPPED, skipped)
        hub.update_scalar(f'train/{_SKIPPED}', skipped, resumed=False)
        self._runner.logger.warning(
            f'{text} The update is skipped, number {skipped} of at most '
            f'{self.max_skips}.'
        )
        raise SkipUpdate


def named_losses(output: Any) -> dict[str, Tensor]:
    """Return what MMEngine's ``BaseModel.parse_losses`` sums up, by name."""
    parts: dict[str, Tensor] = {}
    for name, value in output.items() if isinstance(output, Mapping) else ():
        if 'loss' in name and isinstance(value, Tensor):
            parts[name] = value
        elif 'loss' in name:
            parts |= {f'{name}[{i}]': part for i, part in enumerate(value)}
    return {name: p.detach().float().mean() for name, p in parts.items()}


def describe_not_finite(losses: Mapping[str, Tensor]) -> str:
    """Return the names of NaN or infinite losses; waits for the device."""
    if not losses:
        return ''
    numbers = torch.stack(list(losses.values())).tolist()
    values = dict(zip(losses, numbers, strict=True))
    values['the sum of losses'] = sum(numbers)
    texts = [
        f'{name} is {value:g}'
        for name, value in values.items()
        if not -_LARGEST <= value <= _LARGEST
    ]
    # The sum says something of its own only where all its parts are finite.
    return ', '.join(texts[:-1] or texts)
