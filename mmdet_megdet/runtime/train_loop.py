# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A training loop that goes on inside an epoch, and tells hooks of errors."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import islice

from mmengine.logging import print_log
from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop
from torch import nn
from torch.utils.data import DataLoader

from .config import ConfigError

# Under which the message hub, and so every checkpoint, notes how many batches
# of the epoch are done, and of how many.
_DONE = 'batches_done'


@LOOPS.register_module()
class ResumableTrainLoop(EpochBasedTrainLoop):
    """MMEngine's EpochBasedTrainLoop, which also resumes inside an epoch.

    Contract:

    - Every checkpoint notes how many batches of the epoch are done. Training
      that resumes from one saved inside an epoch (by ``PreemptionHook``, or
      by a CheckpointHook that counts iterations) skips these batches: the
      sampler is asked for the same order, and what was seen is not loaded.
      From there on the images are those of an undisturbed run, in the same
      order. Random augmentation is drawn anew.
    - When training ends with an exception, hooks that have a method
      ``on_error(runner, error)`` are called before it goes on.

    The sampler's order must depend on seed and epoch alone, as that of
    MMEngine's ``DefaultSampler`` does.

    Args:
        *args: As MMEngine's :class:`EpochBasedTrainLoop`.
        **kwargs: As MMEngine's :class:`EpochBasedTrainLoop`.

    Raises:
        ConfigError: If the checkpoint was saved inside an epoch of another
            number of batches.

    Examples:
        >>> train_cfg = dict(type='ResumableTrainLoop', max_epochs=24)
    """

    _skip = 0

    def run(self) -> nn.Module:
        """Train; resumed, from the batch after the last one done."""
        self._skip = self._batches_done()
        try:
            return super().run()
        except Exception as error:
            self.runner.call_hook('on_error', error=error)
            raise

    def run_epoch(self) -> None:
        """Iterate one epoch, or what is left of it."""
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        skip, self._skip = self._skip, 0
        for idx, batch in enumerate(self._batches(skip), start=skip):
            self._note(idx + 1)
            self.run_iter(idx, batch)
        self._note(0)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def _note(self, done: int) -> None:
        self.runner.message_hub.update_info(
            _DONE, (done, len(self.dataloader))
        )

    def _batches_done(self) -> int:
        if self._iter == 0:
            return 0
        done, of = self.runner.message_hub.get_info(_DONE, (0, 0))
        if done and of != len(self.dataloader):
            raise ConfigError(
                f'The checkpoint was saved inside an epoch, after {done} of '
                f'{of} batches, and here an epoch has '
                f'{len(self.dataloader)}: other images per GPU, another '
                'number of GPUs or other data. Resume on the same hardware, '
                "or from an epoch's end (epoch_N.pth)."
            )
        return done

    def _batches(self, skip: int) -> Iterable[Sequence]:
        if skip == 0:
            return self.dataloader
        print_log(
            f'ResumableTrainLoop: epoch {self._epoch + 1} goes on after '
            f'{skip} of {len(self.dataloader)} batches; those are not trained '
            'on again. Random augmentation is drawn anew.',
            logger='current',
            level=logging.WARNING,
        )
        loader = self.dataloader
        if loader.batch_sampler is None:
            return islice(loader, skip, None)
        rest = list(islice(loader.batch_sampler, skip, None))
        return DataLoader(
            loader.dataset,
            batch_sampler=rest,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
            pin_memory_device=loader.pin_memory_device,
        )
