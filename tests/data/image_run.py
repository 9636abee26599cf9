# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Trains on images in files, in this process, and notes what changes."""

from pathlib import Path
from typing import Any

import mmdet.datasets  # noqa: F401  slow: once, ahead of ranks that fork
import torch
from mmengine.config import Config
from mmengine.hooks import EMAHook, Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from tests.data.tiny_run import config_of, hook_of, train
from tests.tools.command import ROOT

CONFIG = ROOT / 'tests' / 'data' / 'images_config.py'
State = dict[str, torch.Tensor]


@HOOKS.register_module(force=True)
class StateRecorder(Hook):
    """Notes everything that training changes.

    ``states[i]`` are copies of weights, buffers, momenta, gradients and EMA
    copy as iteration i finds them.
    """

    priority = 'LOWEST'

    def before_train(self, runner):
        self.states = [self._state(runner)]

    def after_train_iter(self, runner, *args, **kwargs):
        self.states.append(self._state(runner))

    def _state(self, runner) -> dict[str, State]:
        model = getattr(runner.model, 'module', runner.model)
        momenta = runner.optim_wrapper.optimizer.state
        named = dict(model.named_parameters())
        found = dict(weights=named, buffers=dict(model.named_buffers()))
        found['momenta'] = {
            name: momenta[p]['momentum_buffer']
            for name, p in named.items()
            if p in momenta
        }
        found['gradients'] = {
            name: p.grad for name, p in named.items() if p.grad is not None
        }
        for hook in runner.hooks:
            if isinstance(hook, EMAHook):
                found['ema'] = hook.ema_model.state_dict()
        return {
            part: {name: v.detach().clone() for name, v in state.items()}
            for part, state in found.items()
        }


def images_config(data: Path, work_dir: Path, **settings: Any) -> Config:
    """The config for a folder of images, with a StateRecorder."""
    ours = dict(
        train_dataloader__dataset__data_root=f'{data}/',
        default_hooks__recorder=dict(type='StateRecorder'),
    )
    return config_of(CONFIG, work_dir, **ours | settings)


def train_on_images(cfg: Config) -> tuple[Runner, list[dict[str, State]]]:
    """Train; return the runner and the recorded states."""
    runner = train(cfg)
    return runner, hook_of(runner, StateRecorder).states


def changed(before: dict[str, State], after: dict[str, State]) -> set[str]:
    """The parts in which a bit differs, of two recorded states."""

    def same(old: State, new: State) -> bool:
        return old.keys() == new.keys() and all(
            torch.equal(old[name], value) for name, value in new.items()
        )

    return {part for part in after if not same(before[part], after[part])}
