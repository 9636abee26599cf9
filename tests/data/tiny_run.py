# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Trains the tiny config in this process and notes each optimizer update."""

from __future__ import annotations

import itertools
from pathlib import Path

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

import mmdet_megdet  # noqa: F401  registers the hooks
from mmdet_megdet.runtime import adapt_config
from tests.tools.command import TINY_CONFIG

_COUNT = itertools.count()


@HOOKS.register_module(force=True)
class UpdateRecorder(Hook):
    """Notes by which iteration and with which learning rate updates came."""

    def before_train(self, runner):
        self.first_iter = runner.iter
        self.iterations, self.rates = [], []

        def note(optimizer, *_):
            self.iterations.append(runner.iter + 1)
            self.rates.append(optimizer.param_groups[0]['lr'])

        runner.optim_wrapper.optimizer.register_step_post_hook(note)


def tiny_config(work_dir: Path, total: int, images: int, **settings) -> Config:
    """The tiny config with TotalBatchHook.

    Args:
        work_dir (Path): Folder of the run.
        total (int): Total batch size.
        images (int): Images per GPU.
        **settings: Overrides, with ``__`` for the dots.
    """
    cfg = Config.fromfile(TINY_CONFIG)
    # The hook's business.
    del cfg.optim_wrapper['accumulative_counts']
    cfg.merge_from_dict(
        {
            'work_dir': str(work_dir),
            # Runners of one name would share message hub and logger.
            'experiment_name': f'total_batch_{next(_COUNT)}',
            'default_hooks.sync_bn_group': dict(type='SyncBNGroupHook'),
            'default_hooks.total_batch': dict(
                type='TotalBatchHook', total_batch_size=total
            ),
            'custom_hooks': [dict(type='UpdateRecorder')],
            'train_dataloader.batch_size': images,
            'train_dataloader.num_workers': 0,
        }
    )
    cfg.merge_from_dict({k.replace('__', '.'): v for k, v in settings.items()})
    return cfg


def train_tiny(cfg: Config) -> tuple[Runner, UpdateRecorder]:
    """Trains; returns the runner and what the recorder noted."""
    runner = Runner.from_cfg(adapt_config(cfg))
    runner.train()
    (recorder,) = [h for h in runner.hooks if isinstance(h, UpdateRecorder)]
    return runner, recorder


def log_of(work_dir: Path) -> str:
    """The text log of the folder's latest run."""
    return max(work_dir.glob('*/*.log')).read_text()


def update_config(
    work_dir: Path, total: int, images: int, **settings
) -> Config:
    """The same under UpdateTrainLoop; its two epochs are 32 images each."""
    loop = dict(_delete_=True, type='UpdateTrainLoop', max_epochs=2)
    settings = dict(
        train_cfg=loop,
        train_dataloader__batch_sampler=dict(type='UpdateBatchSampler'),
    ) | dict(settings)
    return tiny_config(work_dir, total, images, **settings)
