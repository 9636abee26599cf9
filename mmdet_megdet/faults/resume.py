# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A run resumes with another config than its checkpoint's."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..errors import CheckpointError
from ..runtime import read_config
from ..text import some
from ..upstream.mmengine_names import resumes
from .readable_checkpoint import readable
from .same_run import settings

# What of a config has an effect on a training.
_READ = re.compile(
    r'(param_scheduler|optim_wrapper|model|data_preprocessor'
    r'|sync_bn|model_wrapper_cfg|(train|val)_(cfg|dataloader)|val_evaluator'
    r'|randomness|(custom|default)_hooks)\b'
)
# What MMEngine loads the state of. That is compared: a config in a checkpoint
# is the latest start's, and a state may be of an earlier one.
_OF_STATE = re.compile(
    r'(param_scheduler|randomness\.seed'
    r'|optim_wrapper\.(\w+\.)?(optimizer|paramwise_cfg))\b'
)
_KIND = re.compile(r'(param_scheduler.*|optim_wrapper.*\boptimizer)\.type$')
_NOT_SET = 'not set'
_ANEW = 'start from the weights alone (load_from without resume)'


@HOOKS.register_module()
class ResumeReportHook(Hook):
    """Tell where a resumed run's config is not the checkpoint's.

    When the Runner resumes, schedulers, the optimizer's settings and the seed
    go on as the checkpoint's state has them, which is compared with what
    today's config has made. Model, data, hooks and loops are today's config's,
    which is compared with the checkpoint's as data. One warning lists what
    differs. Other schedulers, or another optimizer, are refused ahead of
    loading.
    """

    # Ahead of what converts a checkpoint.
    priority = 'VERY_HIGH'

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Compare the config with the checkpoint's, if training resumes."""
        wrapper = runner.optim_wrapper
        if not (resumes(runner) and isinstance(wrapper, OptimWrapper)):
            return
        # Where they are missing, asking says so: ahead of loading.
        meta = checkpoint['meta']
        checkpoint['message_hub'], meta['epoch']
        # MMEngine would warn of metainfo that was only made plain.
        today = getattr(runner.train_dataloader.dataset, 'metainfo', None)
        if repr(readable(today)) == repr(meta.get('dataset_meta')):
            meta['dataset_meta'] = today
        source = getattr(checkpoint, 'source', 'the checkpoint')
        of_config = config_changes(
            getattr(checkpoint, 'config_text', ''), runner.cfg.pretty_text
        )
        # Groups of parameters mostly differ in the same way.
        of_state = sorted(set(state_changes(checkpoint, runner)))
        texts = []
        if of_config is None:
            texts.append(f"{source} holds no config to compare with today's.")
        if 'optimizer' not in checkpoint:
            texts.append(
                f"{source} does not hold the optimizer's state: momenta start "
                "anew, and settings are those of today's config."
            )
        if of_state or of_config:
            texts.append(f'{source} has another config (then -> today).')
        for head, changes in (
            (
                "The checkpoint's state holds for these, not today's config "
                f'(to train with that, {_ANEW}):',
                of_state,
            ),
            ("These are today's config's, not the checkpoint's:", of_config),
        ):
            if changes:
                texts.append(f'{head}\n  ' + some(changes, 12, '\n  '))
        if texts:
            runner.logger.warning('\n'.join(['ResumeReportHook:', *texts]))


def config_changes(saved: str | None, today: str) -> list[str] | None:
    """Compare the texts of two configs as data.

    Returns the settings that differ, have an effect on a training and no
    state in a checkpoint; None where one of the texts is no training's config.
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
    changes = []
    for key in filter(_READ.match, flat[0] | flat[1]):
        then, now = (values.get(key, _NOT_SET) for values in flat)
        # Without quotes and scope.
        kinds = {kind.strip('\'"').split('.')[-1] for kind in (then, now)}
        if _KIND.match(key) and len(kinds - {_NOT_SET}) > 1:
            raise CheckpointError(
                f'{key} is {now} in the config and {then} in that of the '
                'checkpoint, whose state it cannot continue. Keep it as it '
                f'was to resume, or {_ANEW}.'
            )
        if then != now and not _OF_STATE.match(key):
            changes.append(f'{key}: {then} -> {now}')
    return changes


def state_changes(checkpoint: Mapping, runner: Runner) -> Iterator[str]:
    """Compare the states in a checkpoint with what today's config has made."""
    states = checkpoint.get('param_schedulers')
    yield from _of_schedulers(states, runner.param_schedulers)
    state = checkpoint.get('optimizer', {})
    yield from _of_optimizer(state, runner.optim_wrapper)
    saved = checkpoint['meta'].get('seed')
    today = runner.cfg.get('randomness', {}).get('seed')
    if None not in (saved, today):
        yield from _compared('randomness.seed', saved, today)


def _of_schedulers(saved: Any, today: Any) -> Iterator[str]:
    states, schedulers = _by_key(saved), _by_key(today)
    if states.keys() != schedulers.keys():
        # MMEngine would pair them by position and leave out the rest.
        raise CheckpointError(
            f'The config has {len(schedulers)} parameter scheduler(s) and the '
            f'checkpoint the state of {len(states)}: whose is whose is not '
            f'known. Keep param_scheduler as it was to resume, or {_ANEW}.'
        )
    for prefix, scheduler in schedulers.items():
        state, own = states[prefix], vars(scheduler)
        if 'type' in state:
            continue  # A warm-up of this package, which tells itself.
        arguments = {
            name
            for kind in type(scheduler).__mro__
            for name in inspect.signature(kind).parameters
        } - {'last_step', 'optimizer', 'verbose'}
        for name in arguments & own.keys() & state.keys():
            yield from _compared(f'{prefix}.{name}', state[name], own[name])


def _by_key(schedulers: Any) -> dict[str, Any]:
    """Return schedulers, or their states, by what a config calls them."""
    # MMEngine has lists of them, dicts of such lists by optimizer, and None.
    named = schedulers if isinstance(schedulers, Mapping) else {'': schedulers}
    return {
        f'param_scheduler.{name}{"." * bool(name)}{index}': each
        for name, several in named.items()
        for index, each in enumerate(several or ())
    }


def _of_optimizer(
    saved: Mapping, today: OptimWrapper, prefix: str = 'optim_wrapper'
) -> Iterator[str]:
    if isinstance(today, OptimWrapperDict):
        for name, each in today.items():
            part = f'{prefix}.{name}'
            yield from _of_optimizer(saved.get(name, {}), each, part)
        return
    groups = today.optimizer.param_groups
    # Another number of groups is refused by torch.
    for then, now in zip(saved.get('param_groups', []), groups, strict=False):
        for key in then.keys() & now.keys() - {'params'}:
            # What schedulers change is compared by what they start from; of
            # Adam's betas momentum is one.
            start = f'initial_{"momentum" if key == "betas" else key}'
            if start not in then.keys() | now.keys():
                setting = f'{prefix}.optimizer.{key.removeprefix("initial_")}'
                yield from _compared(setting, then[key], now[key])


def _compared(key: str, saved: Any, today: Any) -> Iterator[str]:
    then, now = _plain(saved), _plain(today)
    if then != now:
        yield f'{key}: {then!r} -> {now!r}'


def _plain(value: Any) -> Any:
    if isinstance(value, Counter):  # Milestones are kept in one.
        return sorted(value.elements())
    if hasattr(value, 'tolist'):
        return value.tolist()
    # A checkpoint may have tuples where today's config has lists.
    return list(value) if isinstance(value, tuple) else value
