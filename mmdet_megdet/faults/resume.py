# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A run resumes with another config than its checkpoint's.

MMEngine then takes some settings from the checkpoint's state and others from
today's config, without a word. What is taken from where is told, and a state
of something else refused: :class:`ResumeReportHook`.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..errors import CheckpointError
from ..runtime import read_config
from ..text import some
from ..upstream.mmengine_names import resumes
from .readable_checkpoint import plain
from .same_run import settings

# What of a config has an effect on a training, in the order in which it is
# told; the rest is names for parts of it, places, and what is shown.
_READ = (
    'param_scheduler',
    'optim_wrapper',
    'auto_scale_lr',
    'model',
    'data_preprocessor',
    'sync_bn',
    'model_wrapper_cfg',
    'train_cfg',
    'train_dataloader',
    'randomness',
    'val_cfg',
    'val_dataloader',
    'val_evaluator',
    'custom_hooks',
    'default_hooks',
)
_NO_EFFECT = re.compile(
    r'\.(num_workers|persistent_workers|pin_memory|prefetch_factor)$'
    r'|^default_hooks\.(readable_checkpoint|resume_report)\b'
)
# Their state is in the checkpoint: what it says is compared, not the config.
_STATEFUL = re.compile(
    r'(param_scheduler|optim_wrapper\.(\w+\.)?(optimizer|paramwise_cfg))\b'
)
_KIND = re.compile(
    r'(param_scheduler\b.*|optim_wrapper\.(\w+\.)?optimizer)\.type$'
)
_SEED = 'randomness.seed'
_NOT_SET = 'not set'
_ANEW = 'start from the weights alone (load_from without resume)'


@HOOKS.register_module()
class ResumeReportHook(Hook):
    """Tell where a resumed run's config is not the checkpoint's.

    Contract: when the Runner resumes, the config in the checkpoint is
    compared with today's, as data: nothing of it is executed. Schedulers,
    the optimizer's settings and the seed go on as the checkpoint says, since
    MMEngine loads their state; model, data, hooks and loops are what today's
    config makes. One warning lists what differs under these two heads.

    Raises:
        CheckpointError: On every rank, ahead of loading, if there are other
            schedulers than the checkpoint has states, or another optimizer.

    Examples:
        >>> default_hooks = dict(
        ...     resume_report=dict(type='ResumeReportHook'))
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
        source = getattr(checkpoint, 'source', 'the checkpoint')
        of_config = config_changes(
            getattr(checkpoint, 'config_text', ''), runner.cfg.pretty_text
        )
        if of_config is None:
            _warn(f"{source} holds no config to compare with today's.")
            of_config = []
        of_state = scheduler_changes(
            checkpoint.get('param_schedulers'), runner.param_schedulers
        )
        check_kinds(of_config)
        if 'optimizer' in checkpoint:
            of_state += optimizer_changes(
                checkpoint['optimizer'], runner.optim_wrapper
            )
        else:
            _warn(
                f"{source} does not hold the optimizer's state: momenta start "
                "anew, and settings are those of today's config."
            )
        text = report(source, of_state, of_config)
        if text is not None:
            _warn(text)


def _take_equal_metainfo(runner: Runner, meta: dict) -> None:
    """Let metainfo that was made plain be the same as what it was.

    MMEngine compares the bytes of both, and warns.
    """
    today = getattr(runner.train_dataloader.dataset, 'metainfo', None)
    if repr(plain(today)) == repr(meta.get('dataset_meta')):
        meta['dataset_meta'] = today


def _warn(text: str) -> None:
    print_log(
        f'ResumeReportHook: {text}', logger='current', level=logging.WARNING
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
    """
    flat = []
    for text in (saved, today):
        config = read_config(text or '') or {}
        if 'optim_wrapper' not in config:
            return None
        schedulers = config.get('param_scheduler')
        if isinstance(schedulers, dict) and 'type' in schedulers:
            config['param_scheduler'] = [schedulers]
        flat.append(settings({k: config[k] for k in _READ if k in config}))
    old, new = flat
    changed = [
        Change(key, old.get(key, _NOT_SET), new.get(key, _NOT_SET))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key) and not _NO_EFFECT.search(key)
    ]
    return sorted(changed, key=lambda c: _READ.index(c.key.split('.')[0]))


def check_kinds(changes: Sequence[Change]) -> None:
    """Refuse schedulers or an optimizer of another type than the state's."""
    for change in changes:
        # Without quotes and scope.
        kinds = {
            kind.strip('\'"').split('.')[-1]
            for kind in (change.saved, change.today)
        }
        if _KIND.match(change.key) and len(kinds - {_NOT_SET}) > 1:
            raise CheckpointError(
                f'{change.key} is {change.today} in the config and '
                f'{change.saved} in that of the checkpoint, whose state it '
                'cannot continue. Keep it as it was to resume, or '
                f'{_ANEW}.'
            )


def scheduler_changes(saved: Any, today: Any) -> list[Change]:
    """Compare the schedulers that the config makes with saved states.

    Both as the Runner and its checkpoints have them: a list, a dict of lists
    by optimizer, or None. More or fewer than saved are refused: MMEngine
    would pair them by position and leave out the rest.
    """
    saved, today = (
        each if isinstance(each, Mapping) else {'': each}
        for each in (saved, today)
    )
    changes: list[Change] = []
    for name in dict.fromkeys([*today, *saved]):
        states = saved.get(name) or []
        schedulers = today.get(name) or []
        if len(states) != len(schedulers):
            kinds = ', '.join(type(s).__name__ for s in schedulers) or 'none'
            raise CheckpointError(
                f'The config has {len(schedulers)} parameter scheduler(s) '
                f'({kinds}){f" for {name}" if name else ""} and the '
                f'checkpoint the state of {len(states)}. One that is added '
                'has no state to go on from, and of the others it is not '
                'known whose is whose. Keep param_scheduler as it was to '
                f'resume, or {_ANEW}.'
            )
        prefix = f'param_scheduler.{name}' if name else 'param_scheduler'
        for index, pair in enumerate(zip(states, schedulers, strict=True)):
            changes += _of_scheduler(f'{prefix}.{index}', *pair)
    return changes


def _of_scheduler(
    prefix: str, state: dict, scheduler: Any
) -> Iterator[Change]:
    if 'type' in state:  # A warm-up of this package, which tells itself.
        return
    own = vars(scheduler)
    arguments = {
        name
        for kind in type(scheduler).__mro__
        if '__init__' in vars(kind)
        for name in inspect.signature(vars(kind)['__init__']).parameters
    } - {'last_step', 'optimizer', 'verbose'}
    for key in sorted(arguments & own.keys() & state.keys()):
        saved, today = _shown(state[key]), _shown(own[key])
        if saved != today:
            yield Change(f'{prefix}.{key}', saved, today)


def optimizer_changes(saved: Any, today: OptimWrapper) -> list[Change]:
    """Compare the optimizer that the config makes with a saved state.

    One of other parameters, or groups of them, is refused.
    """
    if isinstance(today, OptimWrapperDict):
        wrappers = dict(today.items())
    else:
        wrappers, saved = {'': today}, {'': saved}
    changes: dict[Change, None] = {}
    for name, wrapper in wrappers.items():
        groups = wrapper.optimizer.param_groups
        states = saved.get(name, {}).get('param_groups', [])
        sizes = [
            [len(group['params']) for group in each]
            for each in (states, groups)
        ]
        if sizes[0] != sizes[1]:
            raise CheckpointError(
                f'The optimizer{f" {name}" if name else ""} has '
                f'{sum(sizes[1])} parameters in {len(sizes[1])} group(s), '
                f'the state in the checkpoint {sum(sizes[0])} in '
                f'{len(sizes[0])}: model or optim_wrapper.paramwise_cfg are '
                'not what they were. Keep them as they were to resume, or '
                f'{_ANEW}.'
            )
        prefix = '.'.join(filter(None, ['optim_wrapper', name, 'optimizer']))
        for state, group in zip(states, groups, strict=True):
            changes |= dict.fromkeys(_of_group(prefix, state, group))
    return list(changes)


def _of_group(prefix: str, state: dict, group: dict) -> Iterator[Change]:
    either = state.keys() | group.keys()
    for key in state.keys() & group.keys():
        # What schedulers change is compared by what they start from; of
        # Adam's betas momentum is one.
        scheduled = f'initial_{key}' in either or (
            key == 'betas' and 'initial_momentum' in either
        )
        if key == 'params' or scheduled:
            continue
        saved, today = _shown(state[key]), _shown(group[key])
        if saved != today:
            name = key.removeprefix('initial_')
            yield Change(f'{prefix}.{name}', saved, today)


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, Counter):  # Milestones are kept in one.
        value = sorted(value.elements())
    # A checkpoint has tuples where the optimizer has lists, or lists.
    return repr(list(value) if isinstance(value, tuple) else value)


def report(
    source: str, of_state: Sequence[Change], of_config: Sequence[Change]
) -> str | None:
    """Say what is taken from the checkpoint and what from today's config.

    Returns None where nothing differs.
    """
    seed = [change for change in of_config if change.key == _SEED]
    from_checkpoint = [*sorted(of_state), *seed]
    from_config = [
        change
        for change in of_config
        if change.key != _SEED and not _STATEFUL.match(change.key)
    ]
    parts = []
    if from_checkpoint:
        parts.append(
            "these are the checkpoint's, not today's config's (to train with "
            f"today's, {_ANEW}):{_listed(from_checkpoint)}"
        )
    if from_config:
        parts.append(
            "these are today's config's, not the checkpoint's:"
            + _listed(from_config)
        )
    if not parts:
        return None
    text = '\n'.join(parts)
    return (
        f'{source} was trained with another config (then -> today). In this '
        f'run {text}'
    )


def _listed(changes: Sequence[Change]) -> str:
    return '\n  ' + some(changes, 12, '\n  ')
