# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What a config needs so that it runs unchanged on GPUs and on CPUs."""

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
    """Make a distributed run use this package's model wrapper.

    A stock wrapper (none given, or MMEngine's) becomes
    :class:`MegDetDistributedDataParallel` with the same options; another
    wrapper of the user's own stays. ``cfg.find_unused_parameters``, which
    MMEngine drops as soon as a ``model_wrapper_cfg`` is given, is copied
    into the wrapper's options. A default hook that is None is left out, which
    MMEngine itself does with its own hooks alone. The hooks that keep
    checkpoints readable and tell of changed configs are added.

    Args:
        cfg (Config): The config as the user wrote it; it is not changed.

    Returns:
        Config: An adapted copy.

    Raises:
        ConfigError: If ``cfg.find_unused_parameters`` contradicts
            ``cfg.model_wrapper_cfg``, or the wrapper is the user's own and
            would not hear of it; or if ``cfg.sync_bn`` would undo
            ``MegDetSyncBN``, or a warm-up has no ``end``.
    """
    cfg = cfg.copy()
    wrapper = dict(cfg.get('model_wrapper_cfg') or {})
    _check_sync_bn(cfg, wrapper)
    check_warmup_ends(cfg.get('param_scheduler'))
    asked = cfg.get('find_unused_parameters')
    said = wrapper.get('find_unused_parameters')
    if asked is not None and said is not None and asked != said:
        raise ConfigError(
            f'find_unused_parameters={asked} contradicts '
            f'model_wrapper_cfg.find_unused_parameters={said}: give one of '
            'them.'
        )
    if wrapper.get('type', _STOCK) in (_STOCK, _OURS):
        wrapper['type'] = _OURS
        if asked is not None:
            wrapper['find_unused_parameters'] = asked
    elif asked and said is None:
        raise ConfigError(
            f'find_unused_parameters={asked} does not reach the model '
            f'wrapper {wrapper["type"]}: MMEngine ignores it where '
            'model_wrapper_cfg is given. Write it into model_wrapper_cfg, '
            'or leave model_wrapper_cfg out.'
        )
    cfg.model_wrapper_cfg = wrapper
    hooks = _ALWAYS | dict(cfg.get('default_hooks') or {})
    cfg.default_hooks = {
        name: hook
        for name, hook in hooks.items()
        if hook is not None or name in _STOCK_HOOKS
    }
    return cfg


def find_hook(cfg: Config | dict, name: str) -> dict | None:
    """Return a hook's settings in a config, which may be changed there.

    Args:
        cfg (Config or dict): With ``default_hooks`` and ``custom_hooks``.
        name (str): The hook's type.

    Returns:
        dict, optional: Of the first hook of this type; None without one.
    """
    default = (cfg.get('default_hooks') or {}).values()
    for hook in [*default, *(cfg.get('custom_hooks') or [])]:
        if isinstance(hook, dict) and _has_type(hook, name):
            return hook
    return None


def _has_type(config: dict, name: str) -> bool:
    kind = config.get('type')
    return name in (kind, getattr(kind, '__name__', None))


def _check_sync_bn(cfg: Config, wrapper: dict) -> None:
    sync_bn = cfg.get('sync_bn')
    if sync_bn is None:
        return
    if wrapper.get('convert_bn'):
        ours = 'model_wrapper_cfg.convert_bn makes'
    elif _mentions(cfg.get('model'), 'MegDetSyncBN'):
        ours = 'the model has'
    else:
        return
    raise ConfigError(
        f'{ours} MegDetSyncBN layers, and sync_bn={sync_bn!r} makes MMEngine '
        'replace every BatchNorm, those too, by plain SyncBN before training. '
        'Remove sync_bn from the config (--cfg-options sync_bn=None).'
    )


def _mentions(node: Any, name: str) -> bool:
    """Return whether a ``type`` anywhere in a config has this name."""
    if isinstance(node, dict):
        if _has_type(node, name):
            return True
        node = node.values()
    elif not isinstance(node, list | tuple):
        return False
    return any(_mentions(value, name) for value in node)


def check_warmup_ends(configs: Any) -> None:
    """Refuse a warm-up without ``end``.

    The Runner fills a missing ``end`` with the length of the training,
    before a scheduler's class could see that it was missing: for want of
    ``by_epoch`` with the number of epochs, though the warm-up counts updates.

    Args:
        configs (Any): The config's ``param_scheduler``: one, a list, or for
            several optimizers a dict of these; what is no config is left out.

    Raises:
        ConfigError: If there is one.
    """
    for config in each_config(configs):
        if config.get('end') is not None:
            continue
        kind = config.get('type')
        cls = PARAM_SCHEDULERS.get(kind) if isinstance(kind, str) else kind
        if isinstance(cls, type) and issubclass(cls, WarmupParamScheduler):
            raise ConfigError(
                f'param_scheduler: {cls.__name__} has no end, which is '
                'required: give the step that is to use the end value, in '
                'optimizer updates (end=1000) unless count or by_epoch says '
                'otherwise. (The Runner would take the length of the whole '
                'training, in epochs.)'
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


def check_auto_scale_lr(cfg: Config, world_size: int) -> None:
    """Refuse to let MMEngine scale the learning rate under accumulation.

    Of a config that sets ``optim_wrapper.accumulative_counts`` itself; where
    ``TotalBatchHook`` sets it, the hook refuses.

    Args:
        cfg (Config): The config, ``--auto-scale-lr`` already applied.
        world_size (int): Number of ranks.

    Raises:
        ConfigError: As :func:`check_lr_scaling`.
    """
    counts = cfg.get('optim_wrapper', {}).get('accumulative_counts', 1)
    if counts != 1 and 'train_dataloader' in cfg:
        images = cfg.train_dataloader.batch_size
        check_lr_scaling(cfg.get('auto_scale_lr'), world_size, images, counts)


def check_lr_scaling(
    auto_scale_lr: dict | None, world_size: int, images: int, counts: int
) -> None:
    """Refuse to let MMEngine scale the learning rate under accumulation.

    ``Runner.scale_lr`` multiplies by ``world_size * batch_size /
    base_batch_size`` and knows nothing of ``accumulative_counts``: a recipe
    for 256 images that accumulates 8 times on 8 GPUs with 4 images each
    would train with an eighth of its learning rate.

    Args:
        auto_scale_lr (dict, optional): As in the config.
        world_size (int): Number of ranks.
        images (int): Images per GPU.
        counts (int): Iterations of an optimizer update.

    Raises:
        ConfigError: If scaling is enabled together with accumulation.
    """
    scaling = auto_scale_lr or {}
    base = scaling.get('base_batch_size')
    if not scaling.get('enable', False) or base is None or counts == 1:
        return
    batch = world_size * images
    raise ConfigError(
        '--auto-scale-lr (auto_scale_lr.enable) ignores accumulative_counts='
        f'{counts}: it would multiply the learning rate by {batch}/{base} = '
        f'{batch / base:g} (world size {world_size} x {images} images per '
        f"GPU), while the optimizer's batch is {batch} x {counts} = "
        f'{batch * counts} images, which calls for {batch * counts / base:g}. '
        'Leave --auto-scale-lr out and set optim_wrapper.optimizer.lr for '
        f'{batch * counts} images, or train without accumulation.'
    )


def read_config(text: str) -> dict[str, Any] | None:
    """Read a checkpoint's config as data: nothing of it is executed.

    Numbers, strings, lists, tuples, and dicts in either spelling become what
    they are. Any other expression is its own text: a call, an import, a
    substitution.

    Args:
        text (str): As ``Config.pretty_text`` gives it.

    Returns:
        dict: Values by names; None for what is no Python.
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
