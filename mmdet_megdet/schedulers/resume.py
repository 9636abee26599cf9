# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Whether a checkpoint's state belongs to a warm-up, and how it differs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mmengine.logging import print_log

if TYPE_CHECKING:
    from .warmup_base import WarmupParamScheduler


def check_state(warmup: WarmupParamScheduler, state: dict) -> None:
    """Warn where a checkpoint's settings are not those of the config.

    Args:
        warmup (WarmupParamScheduler): As built from the config.
        state (dict): As saved by :meth:`WarmupParamScheduler.state_dict`.

    Raises:
        ValueError: If it is the state of another kind of scheduler, or of
            other parameter groups.
    """
    own = vars(warmup)
    name, param_name = type(warmup).__name__, warmup.param_name
    if (
        state.get('type') != name
        or state['param_name'] != param_name
        or len(state['base_values']) != len(warmup.base_values)
    ):
        raise ValueError(
            f'{name} for {param_name} of {len(warmup.base_values)} '
            'parameter groups cannot resume from the state of another '
            'scheduler or optimizer. Keep param_scheduler, optim_wrapper '
            'and model as they were when the checkpoint was saved.'
        )
    settings = sorted(own.keys() & state.keys() - warmup._PROGRESS)
    settings.remove('base_values')
    pairs = [(key, state[key], own[key]) for key in settings]
    for both in dict.fromkeys(
        zip(state['base_values'], warmup.base_values, strict=True)
    ):
        pairs.append((f'base {param_name}', *both))
    changes = [
        f'{what} is {theirs} (config: {ours})'
        for what, theirs, ours in pairs
        if theirs != ours
    ]
    if changes:
        print_log(
            f'{name} resumes with what the checkpoint says, not the '
            f'config: {", ".join(changes)}. To train with the changed '
            'config, start from the weights alone (load_from without '
            'resume).',
            logger='current',
            level=logging.WARNING,
        )
