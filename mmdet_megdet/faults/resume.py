# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A run resumes with another config than its checkpoint's.

MMEngine then takes some settings from the checkpoint's state and others from
today's config, without a word. What is taken from where is told, and a state
of something else refused: :class:`ResumeReportHook`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sized
from typing import NamedTuple

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..errors import CheckpointError
from ..runtime import read_config
from ..text import some
from ..upstream.mmengine_names import resumes
from .readable_checkpoint import readable
from .same_run import settings

# What of a config has an effect on a training; the rest is names for parts of
# it, places, and what is shown.
_READ = re.compile(
    r'(param_scheduler|optim_wrapper|auto_scale_lr|model|data_preprocessor'
    r'|sync_bn|model_wrapper_cfg|(train|val)_(cfg|dataloader)|val_evaluator'
    r'|randomness|(custom|default)_hooks)\b'
)
# What MMEngine loads the state of, and takes from there.
_STATE = re.compile(
    r'(param_scheduler|auto_scale_lr|randomness\.seed'
    r'|optim_wrapper\.(\w+\.)?(optimizer|paramwise_cfg))\b'
)
_KIND = re.compile(
    r'(param_scheduler\b.*|optim_wrapper\.(\w+\.)?optimizer)\.type$'
)
_NOT_SET = 'not set'
_ANEW = 'start from the weights alone (load_from without resume)'


@HOOKS.register_module()
class ResumeReportHook(Hook):
    """Tell where a resumed run's config is not the checkpoint's.

    Contract: when the Runner resumes, the config in the checkpoint is
    compared with today's, as data: nothing of it is executed. Schedulers,
    the optimizer's settings and the seed go on as the checkpoint's state has
    them; model, data, hooks and loops are what today's config makes. One
    warning lists what differs under these two heads.

    Raises:
        CheckpointError: On every rank, ahead of loading, if there are other
            schedulers than the checkpoint has states, or another optimizer.
    """

    # Ahead of what converts a checkpoint.
    priority = 'VERY_HIGH'

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Compare, if this is a training that resumes."""
        if not resumes(runner) or not isinstance(
            runner.optim_wrapper, OptimWrapper
        ):
            return
        # Where they are missing, asking says so: ahead of loading.
        checkpoint['message_hub'], checkpoint['meta']['epoch']
        _take_equal_metainfo(runner, checkpoint['meta'])
        _check_number(checkpoint.get('param_schedulers'), runner)
        source = getattr(checkpoint, 'source', 'the checkpoint')
        if 'optimizer' not in checkpoint:
            _warn(
                f"{source} does not hold the optimizer's state: momenta start "
                "anew, and settings are those of today's config."
            )
        changes = config_changes(
            getattr(checkpoint, 'config_text', ''), runner.cfg.pretty_text
        )
        if changes is None:
            _warn(f"{source} holds no config to compare with today's.")
        elif changes:
            _warn(_report(source, changes))


def _take_equal_metainfo(runner: Runner, meta: dict) -> None:
    """Let metainfo that was made plain be the same as what it was.

    MMEngine compares the bytes of both, and warns.
    """
    today = getattr(runner.train_dataloader.dataset, 'metainfo', None)
    if repr(readable(today)) == repr(meta.get('dataset_meta')):
        meta['dataset_meta'] = today


def _check_number(saved: Sized | None, runner: Runner) -> None:
    """Refuse more or fewer schedulers than were saved.

    MMEngine would pair them by position and leave out the rest.
    """
    then, today = len(saved or ()), len(runner.param_schedulers or ())
    if then != today:
        raise CheckpointError(
            f'The config has {today} parameter scheduler(s) and the '
            f'checkpoint the state of {then}: whose is whose is not known. '
            f'Keep param_scheduler as it was to resume, or {_ANEW}.'
        )


class Change(NamedTuple):
    """A setting that is not what it was."""

    key: str
    saved: str
    today: str

    def __str__(self) -> str:
        return f'{self.key}: {self.saved} -> {self.today}'


def config_changes(saved: str | None, today: str) -> list[Change] | None:
    """Compare the texts of two configs as data.

    Returns the settings that differ and have an effect on a training; None
    where one of the texts is no training's config.

    Raises:
        CheckpointError: If a scheduler or the optimizer is of another type.
    """
    flat = []
    for text in (saved, today):
        config = read_config(text or '') or {}
        if 'optim_wrapper' not in config:
            return None
        schedulers = config.get('param_scheduler')
        if isinstance(schedulers, dict) and 'type' in schedulers:
            config['param_scheduler'] = [schedulers]
        flat.append(settings(config))
    old, new = flat
    changes = [
        Change(key, old.get(key, _NOT_SET), new.get(key, _NOT_SET))
        for key in old | new
        if old.get(key) != new.get(key) and _READ.match(key)
    ]
    for key, then, now in changes:
        # Without quotes and scope.
        kinds = {kind.strip('\'"').split('.')[-1] for kind in (then, now)}
        if _KIND.match(key) and len(kinds - {_NOT_SET}) > 1:
            raise CheckpointError(
                f'{key} is {now} in the config and {then} in that of the '
                'checkpoint, whose state it cannot continue. Keep it as it '
                f'was to resume, or {_ANEW}.'
            )
    return changes


def _report(source: str, changes: list[Change]) -> str:
    """Say what is taken from the checkpoint and what from today's config."""
    heads = {
        "The checkpoint's state holds for these, not today's config (to train "
        f'with that, {_ANEW}):': [c for c in changes if _STATE.match(c.key)],
        "These are today's config's, not the checkpoint's:": [
            c for c in changes if not _STATE.match(c.key)
        ],
    }
    text = f'{source} was trained with another config (then -> today).'
    for head, found in heads.items():
        if found:
            text += '\n  '.join([f'\n{head}', some(found, 12, '\n  ')])
    return text


def _warn(text: str) -> None:
    print_log(
        f'ResumeReportHook: {text}', logger='current', level=logging.WARNING
    )
