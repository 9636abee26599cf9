# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A model of four norm layers of equal width, and runs that watch it."""

from __future__ import annotations

import itertools
import json
import os
from functools import partial
from pathlib import Path
from unittest import mock

from mmengine.config import Config
from mmengine.dist import get_rank
from mmengine.dist import get_world_size as world
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from mmengine.runner import Runner
from torch import nn
from torch.utils.checkpoint import checkpoint

import mmdet_megdet  # noqa: F401  registers hooks and layers
import tests.data.tiny_task  # noqa: F401  registers the data set
from mmdet_megdet.runtime import adapt_config
from mmdet_megdet.sync_bn import MegDetSyncBN

LAYERS = ['stem', 'second', 'third', 'fourth']
WIDTH = 6
_COUNT = itertools.count()


@MODELS.register_module(force=True)
class BNStack(BaseModel):
    """Convolutions, each with a norm layer, one after another.

    Of the layers ``plain`` ones are ``nn.BatchNorm2d``, ``norm_eval`` ones
    stay in eval mode, and ``with_cp`` recomputes the last two in backward.
    ``uneven`` ranks leave out some or all of their images, differently in
    each iteration; every 40th, all ranks leave out all. ``calls`` is the
    order in which the layers are called.
    """

    def __init__(
        self,
        plain=(),
        bn_size=None,
        norm_eval=(),
        uneven=False,
        with_cp=False,
        data_preprocessor=None,
    ):
        super().__init__(data_preprocessor)
        self.convs, self.norms = nn.ModuleDict(), nn.ModuleDict()
        for name in LAYERS:
            channels = 3 if name == 'stem' else WIDTH
            self.convs[name] = nn.Conv2d(channels, WIDTH, 3, padding=1)
            self.norms[name] = MegDetSyncBN(WIDTH, bn_size=bn_size)
            if name in plain:
                self.norms[name] = nn.BatchNorm2d(WIDTH)
        self.norm_eval = norm_eval
        self.uneven, self.with_cp = uneven, with_cp
        self.calls, self.iterations = list(LAYERS), 0

    def train(self, mode=True):
        super().train(mode)
        for name in self.norm_eval:
            self.norms[name].eval()
        return self

    def _block(self, name, x):
        return self.norms[name](self.convs[name](x)).relu()

    def forward(self, inputs, targets=None, mode='tensor'):
        if self.uneven and self.training:
            self.iterations += 1
            left = (self.iterations * 3 + get_rank() * 2) % (len(inputs) + 1)
            if self.iterations % 40 == 0:
                left = 0
            inputs, targets = inputs[:left], targets[:left]
        x = inputs
        for name in self.calls:
            block = partial(self._block, name)
            if self.with_cp and name in LAYERS[2:]:
                block = partial(checkpoint, block, use_reentrant=False)
            x = block(x)
        guess = x.mean((1, 2, 3)).unsqueeze(1)
        if mode != 'loss':
            return [dict(error=e) for e in (guess - targets).abs().flatten()]
        error = (guess - targets).square().sum() / max(1, len(guess))
        return dict(loss=error)


def stack_config(work_dir, **settings):
    """Two epochs of three iterations of two images on each rank.

    ``settings`` are overrides, with ``__`` for the dots.
    """
    cfg = Config(
        dict(
            default_scope='mmengine',
            # Runners of one name would share message hub and logger.
            experiment_name=f'bn_stack_{next(_COUNT)}',
            work_dir=str(work_dir),
            launcher='pytorch' if world() > 1 else 'none',
            log_level='INFO',
            model=dict(type='BNStack'),
            model_wrapper_cfg=dict(type='MegDetDistributedDataParallel'),
            train_dataloader=dict(
                batch_size=2,
                num_workers=0,
                dataset=dict(
                    type='TinyImages', length=6 * world(), augment=True
                ),
                sampler=dict(type='DefaultSampler', shuffle=False),
                collate_fn=dict(type='default_collate'),
            ),
            train_cfg=dict(by_epoch=True, max_epochs=2),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.01)),
            default_hooks=dict(
                logger=dict(type='LoggerHook', interval=1),
                checkpoint=dict(type='CheckpointHook', save_last=False),
                sync_bn_group=dict(type='SyncBNGroupHook'),
                bn_stats=dict(
                    type='BNStatsMonitorHook',
                    interval=2,
                    # So small a model mostly communicates.
                    max_collective_share=1.0,
                ),
            ),
            custom_hooks=[],
            randomness=dict(seed=3),
        )
    )
    cfg.merge_from_dict({k.replace('__', '.'): v for k, v in settings.items()})
    return cfg


def train_stack(cfg):
    """Trains to the end; returns the runner."""
    os.environ['LOCAL_RANK'] = str(get_rank())
    # It asks compilers for their versions, which takes longer than training.
    with mock.patch('mmengine.runner.runner.collect_env', dict):
        runner = Runner.from_cfg(adapt_config(cfg))
    runner.train()
    return runner


def lines(work_dir):
    """What ``bn_stats.jsonl`` holds."""

    def refuse(constant):
        raise AssertionError(f'{constant} is no JSON')

    text = Path(work_dir, 'bn_stats.jsonl').read_text()
    return [
        json.loads(line, parse_constant=refuse) for line in text.splitlines()
    ]
