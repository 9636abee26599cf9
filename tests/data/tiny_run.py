# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Trains in this process, and the tiny config with its updates noted."""

import copy
import itertools
import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

from mmengine.config import Config
from mmengine.dist import get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

import mmdet_megdet  # noqa: F401  registers the hooks
from mmdet_megdet.runtime import adapt_config
from tests.tools.command import TINY_CONFIG

_COUNT = itertools.count()


def config_of(path: Path, work_dir: Path, **settings: Any) -> Config:
    """A config for a run in this process; settings have ``__`` for dots."""
    cfg = Config.fromfile(path)
    cfg.work_dir = str(work_dir)
    # Runners of one name would share message hub and logger.
    cfg.experiment_name = f'{path.stem}_{next(_COUNT)}'
    cfg.train_dataloader.num_workers = 0
    settings = copy.deepcopy(settings)  # MMEngine takes _delete_ out of it
    cfg.merge_from_dict({k.replace('__', '.'): v for k, v in settings.items()})
    return cfg


def train(cfg: Config) -> Runner:
    """Train as this process's rank; return the runner."""
    cfg.launcher = 'pytorch' if get_world_size() > 1 else 'none'
    with (
        mock.patch.dict(os.environ, LOCAL_RANK=str(get_rank())),
        # It asks compilers for their versions, which takes long.
        mock.patch('mmengine.runner.runner.collect_env', dict),
    ):
        runner = Runner.from_cfg(adapt_config(cfg))
        runner.train()
    return runner


def hook_of(runner: Runner, kind: type[Hook]) -> Any:
    """The one hook of a class."""
    (hook,) = [hook for hook in runner.hooks if isinstance(hook, kind)]
    return hook


def log_of(work_dir: Path) -> str:
    """The text log of the folder's latest run."""
    return max(work_dir.glob('*/*.log')).read_text()


def curves_of(work_dir: Path, name: str) -> list[tuple[int, float]]:
    """Step and value of a curve that the folder's latest run has drawn."""
    path = max(work_dir.glob('*/vis_data/scalars.json'))
    lines = map(json.loads, path.read_text().splitlines())
    return [(line['step'], line[name]) for line in lines if name in line]


@HOOKS.register_module(force=True)
class UpdateRecorder(Hook):
    """Notes by which iteration updates came."""

    def before_train(self, runner):
        self.iterations = []
        runner.optim_wrapper.optimizer.register_step_post_hook(
            lambda *_: self.iterations.append(runner.iter + 1)
        )


def by_iteration(max_iters: int) -> dict[str, Any]:
    """Settings for MMEngine's loop that starts workers ahead of all hooks."""
    loop = dict(type='IterBasedTrainLoop', max_iters=max_iters, _delete_=True)
    return dict(
        train_cfg=loop,
        train_dataloader__batch_sampler=None,
        train_dataloader__sampler__type='InfiniteSampler',
        param_scheduler=None,
    )


def tiny_config(
    work_dir: Path, total: int, images: int, **settings: Any
) -> Config:
    """The tiny config with TotalBatchHook, for this total batch size."""
    total_batch = dict(type='TotalBatchHook', total_batch_size=total)
    ours = dict(
        default_hooks__sync_bn_group=dict(type='SyncBNGroupHook'),
        default_hooks__total_batch=total_batch,
        custom_hooks=[dict(type='UpdateRecorder')],
        train_dataloader__batch_size=images,
    )
    cfg = config_of(TINY_CONFIG, work_dir, **ours | settings)
    if 'optim_wrapper__accumulative_counts' not in settings:
        # The hook's business.
        del cfg.optim_wrapper['accumulative_counts']
    return cfg


def update_config(
    work_dir: Path, total: int, images: int, **settings: Any
) -> Config:
    """The same under UpdateTrainLoop; its two epochs are 32 images each."""
    ours = dict(
        train_cfg=dict(_delete_=True, type='UpdateTrainLoop', max_epochs=2),
        train_dataloader__batch_sampler=dict(type='UpdateBatchSampler'),
    )
    return tiny_config(work_dir, total, images, **ours | settings)


def train_tiny(cfg: Config) -> tuple[Runner, UpdateRecorder]:
    """Train; return the runner and what the recorder noted."""
    runner = train(cfg)
    return runner, hook_of(runner, UpdateRecorder)
