# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Judging a run's annotation files ahead of it, on one rank for all."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from mmengine.config import Config
from mmengine.dist import (
    all_gather_object,
    broadcast_object_list,
    is_main_process,
)

from ..annotations import Verdict, configured, judge, unreadable
from .pictures import DataError

Mode = Literal['raise', 'warn', 'off']

# What was said of files in this process, by the files and their use: what a
# tool has found, DataCheckHook need not look for again.
_said: dict[tuple, list[Verdict]] = {}


def mode_of(cfg: Config | dict) -> Mode:
    """Return what a config's DataCheckHook does about annotations.

    Args:
        cfg (Config): The config.

    Returns:
        str: 'raise' where there is no such hook.
    """
    hook = data_check_of(cfg)
    return 'raise' if hook is None else hook.get('annotations', 'raise')


def data_check_of(cfg: Config | dict) -> dict | None:
    """Return the settings of a config's DataCheckHook, if it has one."""
    hooks = [
        *(cfg.get('default_hooks') or {}).values(),
        *(cfg.get('custom_hooks') or []),
    ]
    for hook in hooks:
        kind = hook.get('type') if isinstance(hook, dict) else None
        if 'DataCheckHook' in (kind, getattr(kind, '__name__', None)):
            return hook
    return None


def is_refused(verdict: Verdict, mode: Mode) -> bool:
    """Return whether training does not start with what was found.

    Args:
        verdict (Verdict): What was found.
        mode (str): DataCheckHook's ``annotations``.
    """
    return verdict.level == 'broken' or (
        verdict.level == 'misleading' and mode == 'raise'
    )


def check_annotation_files(
    cfg: Config | dict,
    roles: Sequence[str] = ('train', 'val'),
    mode: Mode | None = None,
) -> list[Verdict]:
    """Judge the annotation files of a run; a collective.

    Every rank looks whether the files are there; rank 0 reads them.

    Args:
        cfg (Config): This rank's config; the process group must exist.
        roles (Sequence[str]): For which of 'train', 'val' and 'test'.
        mode (str, optional): DataCheckHook's ``annotations``. Defaults to
            that of the config's hook.

    Returns:
        list[Verdict]: What is to be told without stopping, the same on every
        rank.

    Raises:
        DataError: On every rank, if a file cannot be used, or would not be
            used as is meant.
    """
    mode = mode or mode_of(cfg)
    _check_each_rank(cfg, roles)
    if mode == 'off':
        return []
    said: list[Any] = [_judge(cfg, roles) if is_main_process() else None]
    broadcast_object_list(said)
    if isinstance(said[0], str):
        raise RuntimeError(said[0])
    refused = [v for v in said[0] if is_refused(v, mode)]
    if refused:
        raise DataError(refusal(refused))
    return [v for v in said[0] if v.level != 'sound']


def _check_each_rank(cfg: Config | dict, roles: Sequence[str]) -> None:
    """Refuse what a rank sees without reading a file; a collective."""
    try:
        uses, evaluations, verdicts = configured(cfg, roles)
        paths = dict.fromkeys(x.path for x in [*uses, *evaluations])
        own = [f'{v.text} {v.remedy}' for v in verdicts if v.level == 'broken']
        own += [reason for reason in map(unreadable, paths) if reason]
    except Exception:
        own = [traceback.format_exc()]
    by_rank = [' '.join(reasons) for reasons in all_gather_object(own)]
    if len(set(by_rank)) == 1:
        faults = by_rank[:1]
    else:
        faults = [
            f'rank {r}: {text}' for r, text in enumerate(by_rank) if text
        ]
    if any(faults):
        raise DataError(' '.join(faults))


def _judge(cfg: Config | dict, roles: Sequence[str]) -> list[Verdict] | str:
    # Whatever happens on this rank, the others wait to be told.
    try:
        key = _key(cfg, roles)
        if key not in _said:
            _said[key] = judge(cfg, roles).verdicts
        return _said[key]
    except Exception:
        return traceback.format_exc()


def _key(cfg: Config | dict, roles: Sequence[str]) -> tuple:
    uses, evaluations, _ = configured(cfg, roles)
    parts: list[tuple] = [tuple(evaluation) for evaluation in evaluations]
    for use in uses:
        settings = [use.config.get(k) for k in ('filter_cfg', 'indices')]
        settings.append(bool(use.config.get('test_mode')))
        parts.append(
            (use.role, use.path, use.classes, use.with_masks, repr(settings))
        )
    states = []
    for path in dict.fromkeys(x.path for x in [*uses, *evaluations]):
        state = Path(path).stat()
        states.append((path, state.st_mtime_ns, state.st_size))
    return tuple(roles), tuple(parts), tuple(states)


def refusal(verdicts: Sequence[Verdict]) -> str:
    """Return the message for what stops a run.

    Args:
        verdicts (Sequence[Verdict]): Why it stops.
    """
    text = ' '.join(f'{v.text} {v.remedy}'.strip() for v in verdicts)
    if any(verdict.level == 'broken' for verdict in verdicts):
        return text
    return (
        f'{text} Or say that it is on purpose: '
        "default_hooks.data_check=dict(type='DataCheckHook', "
        "annotations='warn')."
    )
