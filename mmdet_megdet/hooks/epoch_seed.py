# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Random streams that depend on the epoch, not on what ran before it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ..updates import seed_generators


def _seed_worker(
    worker_id: int,
    *,
    worker_init_fn: Callable[[int], None] | None,
    words: tuple[int, ...],
) -> None:
    if worker_init_fn is not None:
        worker_init_fn(worker_id)
    seed_generators(*words, worker_id)


@HOOKS.register_module()
class EpochSeedHook(Hook):
    """Make an epoch's random numbers those of (seed, epoch, rank) alone.

    mmengine does not save the state of the random generators, so training
    resumed at an epoch's end would draw other numbers than training straight
    through. With this hook both draw the same:

    - At each epoch's start the global generators of Python, numpy and torch
      (all devices) are seeded from (seed, epoch, rank), and in worker
      ``i`` of the training dataloader from (seed, epoch, rank, i).
      (mmengine's own ``worker_init_fn`` seeds every epoch alike; it still
      runs first.) A generator object that somebody keeps for himself is not
      touched.
    - Persistent workers would keep last epoch's generators, so they are
      started anew every epoch. That costs what ``persistent_workers=True``
      saves: once per epoch, the start of ``num_workers`` processes and the
      first batch's loading time.
    - ``seed`` is the config's ``randomness.seed``. When a run resumes, the
      checkpoint's seed rules: the Runner adopts it, and this hook gives it to
      the sampler too, which was built before. The log says so. With
      ``load_from`` alone nothing is adopted.

    It runs with the highest priority but one, ahead of whatever draws.
    Validation may draw as it likes: the next epoch does not notice.

    Raises:
        ValueError: With ``randomness.diff_rank_seed``, under which the
            sampler's seed is in no checkpoint. The ranks differ without it.
        TypeError: Under an ``IterBasedTrainLoop``, which has no epochs: its
            workers run from the start of training to its end.

    Examples:
        >>> default_hooks = dict(epoch_seed=dict(type='EpochSeedHook'))
    """

    priority = 'VERY_HIGH'

    def before_run(self, runner: Runner) -> None:
        """Note the seed with which the sampler was built."""
        self._initial_seed = runner.seed

    def before_train(self, runner: Runner) -> None:
        """Refuse what cannot work; give the sampler a resumed run's seed."""
        if isinstance(runner.train_loop, IterBasedTrainLoop):
            raise TypeError(
                'EpochSeedHook works with epochs, but this run uses '
                f'{type(runner.train_loop).__name__}. Train by epoch '
                '(train_cfg.type=EpochBasedTrainLoop) or remove the hook.'
            )
        if runner._randomness_cfg.get('diff_rank_seed', False):
            raise ValueError(
                'EpochSeedHook cannot continue a run with '
                'randomness.diff_rank_seed=True: its sampler is seeded at '
                'random, and no checkpoint holds that seed. Remove '
                'diff_rank_seed: the hook makes ranks differ already.'
            )
        loader = runner.train_dataloader
        self._worker_init_fn = loader.worker_init_fn
        if runner.seed != self._initial_seed:
            self._adopt_seed(loader, runner.seed)

    def _adopt_seed(self, loader: DataLoader, seed: int) -> None:
        sampler = getattr(loader.batch_sampler, 'sampler', loader.sampler)
        # A sampler with a seed of its own in the config keeps it.
        if getattr(sampler, 'seed', None) == self._initial_seed:
            sampler.seed = seed
        print_log(
            f'EpochSeedHook: the run continues with seed {seed} of the '
            f'checkpoint, not with {self._initial_seed}, in augmentation, '
            'model and sampler (unless that has its own seed in the config).',
            logger='current',
            level=logging.WARNING,
        )

    def before_train_epoch(self, runner: Runner) -> None:
        """Seed this process now, and the workers when they start."""
        words = (runner.seed, runner.epoch, runner.rank)
        seed_generators(*words)
        loader = runner.train_dataloader
        loader.worker_init_fn = partial(
            _seed_worker, worker_init_fn=self._worker_init_fn, words=words
        )
        # Where persistent workers are kept; the next epoch starts new ones.
        loader._iterator = None
