# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Adapt a config so that it runs unchanged on GPUs and on CPUs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from mmengine.config import Config
from mmengine.registry import PARAM_SCHEDULERS

from ..errors import ConfigError
from ..schedulers import WarmupParamScheduler

_OURS = 'MegDetDistributedDataParallel'
# What the Runner builds without a type; ours is a subclass of it.
_STOCK = 'MMDistributedDataParallel'
# MMEngine's own default hooks, which None takes out.
_STOCK_HOOKS = (
    'runtime_info',
    'timer',
    'sampler_seed',
    'logger',
    'param_scheduler',
    'checkpoint',
)
# Which every run has unless its config says None.
_ALWAYS = dict(
    readable_checkpoint=dict(type='ReadableCheckpointHook'),
    resume_report=dict(type='ResumeReportHook'),
)


def adapt_config(cfg: Config) -> Config:
    """Return a copy of a config, completed for a run by this package's tools.

    A stock model wrapper (none given, or MMEngine's) becomes
    :class:`MegDetDistributedDataParallel`, ``find_unused_parameters`` one of
    its options; a default hook that is None is left out, which MMEngine does
    with its own alone; the hooks that keep checkpoints readable and tell of
    changed configs are added. Settings that undo one another are refused.
    """
    cfg = cfg.copy()
    wrapper = dict(cfg.get('model_wrapper_cfg') or {})
    _check_sync_bn(cfg, wrapper)
    check_warmup_ends(cfg.get('param_scheduler'))
    optim_wrapper = cfg.get('optim_wrapper') or {}
    counts = optim_wrapper.get('accumulative_counts', 1)
    check_lr_scaling(cfg.get('auto_scale_lr'), counts)
    if wrapper.get('type', _STOCK) in (_STOCK, _OURS):
        wrapper['type'] = _OURS
        asked = cfg.get('find_unused_parameters')
        if asked is not None:
            wrapper.setdefault('find_unused_parameters', asked)
    cfg.model_wrapper_cfg = wrapper
    hooks = _ALWAYS | dict(cfg.get('default_hooks') or {})
    cfg.default_hooks = {
        name: hook
        for name, hook in hooks.items()
        if hook is not None or name in _STOCK_HOOKS
    }
    return cfg


def find_hook(cfg: Config | dict, name: str) -> dict | None:
    """Return the settings of the first hook of a type, to be changed."""
    default = (cfg.get('default_hooks') or {}).values()
    for hook in [*default, *(cfg.get('custom_hooks') or [])]:
        kind = hook.get('type') if isinstance(hook, dict) else None
        if name in (kind, getattr(kind, '__name__', None)):
            return hook
    return None


def _check_sync_bn(cfg: Config, wrapper: dict) -> None:
    converts = wrapper.get('convert_bn')
    ours = converts or 'MegDetSyncBN' in repr(cfg.get('model'))
    if ours and cfg.get('sync_bn') is not None:
        raise ConfigError(
            f'sync_bn={cfg.sync_bn!r} makes MMEngine replace MegDetSyncBN by '
            'plain SyncBN. Remove it (--cfg-options sync_bn=None).'
        )


def check_warmup_ends(configs: Any) -> None:
    """Refuse a warm-up without ``end`` in a config's ``param_scheduler``.

    The Runner would fill it with the number of epochs, before the class could
    see that it was missing.
    """
    for config in each_config(configs):
        if config.get('end') is not None:
            continue
        kind = config.get('type')
        cls = PARAM_SCHEDULERS.get(kind) if isinstance(kind, str) else kind
        if isinstance(cls, type) and issubclass(cls, WarmupParamScheduler):
            raise ConfigError(
                f'param_scheduler: {cls.__name__} has no end: the step that '
                'is to use the end value, in optimizer updates (end=1000) '
                'unless count or by_epoch says otherwise.'
            )


def each_config(configs: Any) -> Iterator[dict]:
    """Iterate over the dicts with a type in nested lists and dicts."""
    if isinstance(configs, dict) and 'type' not in configs:
        configs = list(configs.values())
    if isinstance(configs, Sequence) and not isinstance(configs, str):
        for config in configs:
            yield from each_config(config)
    elif isinstance(configs, dict):
        yield configs


def check_lr_scaling(auto_scale_lr: dict | None, counts: int) -> None:
    """Refuse to let MMEngine scale the learning rate under accumulation."""
    if (auto_scale_lr or {}).get('enable') and counts != 1:
        raise ConfigError(
            '--auto-scale-lr (auto_scale_lr.enable) ignores '
            f'accumulative_counts={counts}, and would set the learning rate '
            f'for a batch that is {counts} times smaller. Leave it out and '
            'set optim_wrapper.optimizer.lr for the whole batch.'
        )


def read_config(text: str) -> dict[str, Any] | None:
    """Read a checkpoint's config as data: nothing of it is executed.

    Literals, and dicts in either spelling, become what they are; any other
    expression its own text. None is returned for what is no Python.
    """
    try:
        return {
            statement.targets[0].id: _value(statement.value)
            for statement in ast.parse(text).body
            if isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.List() | ast.Tuple():
            kind = list if isinstance(node, ast.List) else tuple
            return kind(_value(item) for item in node.elts)
        case ast.Call(func=ast.Name(id='dict'), args=[]) if all(
            keyword.arg for keyword in node.keywords
        ):
            return {k.arg: _value(k.value) for k in node.keywords}
        case ast.Dict():
            keys = [k.value for k in node.keys if isinstance(k, ast.Constant)]
            if len(keys) == len(node.keys):
                return dict(zip(keys, map(_value, node.values), strict=True))
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return ast.unparse(node)
