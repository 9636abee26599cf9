# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A model of four norm layers of equal width, and runs that watch it."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from mmengine.dist import get_rank, get_world_size
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from mmengine.runner import Runner
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.data.tiny_run import config_of, train
from tests.tools.command import TINY_CONFIG

LAYERS = ['stem', 'second', 'third', 'fourth']
WIDTH = 6


@MODELS.register_module(force=True)
class BNStack(BaseModel):
    """Convolutions, each with a norm layer, one after another.

    Of the layers ``plain`` ones are ``nn.BatchNorm2d``, ``norm_eval`` ones
    stay in eval mode, and ``with_cp`` recomputes the last two in backward.
    ``uneven`` ranks leave out some or all of their images, others in each
    iteration; every 40th, all do. ``calls`` is the order of calls.
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


def train_stack(work_dir: Path, **settings: Any) -> Runner:
    """Train two epochs of three iterations of two images on each rank.

    ``settings`` are overrides of the tiny config, with ``__`` for the dots.
    """
    ours = dict(
        model=dict(_delete_=True, type='BNStack'),
        train_dataloader__batch_size=2,
        train_dataloader__dataset__length=6 * get_world_size(),
        train_dataloader__sampler__shuffle=False,
        train_cfg__max_epochs=2,
        optim_wrapper=dict(_delete_=True, optimizer=dict(type='SGD', lr=0.01)),
        param_scheduler=None,
        default_hooks__checkpoint=dict(
            _delete_=True, type='CheckpointHook', save_last=False
        ),
        default_hooks__sync_bn_group=dict(type='SyncBNGroupHook'),
        default_hooks__bn_stats=dict(
            type='BNStatsMonitorHook',
            interval=2,
            # So small a model mostly communicates.
            max_collective_share=1.0,
        ),
    )
    return train(config_of(TINY_CONFIG, work_dir, **ours | settings))


def lines(work_dir: Path) -> list[dict]:
    """What ``bn_stats.jsonl`` holds."""

    def refuse(constant):
        raise AssertionError(f'{constant} is no JSON')

    text = Path(work_dir, 'bn_stats.jsonl').read_text()
    return [
        json.loads(line, parse_constant=refuse) for line in text.splitlines()
    ]
