# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Trains faults_config.py in this process."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.runner import Runner

from mmdet_megdet.runtime import adapt_config
from tests.tools.command import ROOT

CONFIG = ROOT / 'tests' / 'data' / 'faults_config.py'
_COUNT = itertools.count()


def train(work_dir: Path, **settings: Any) -> Runner:
    """Train, and return the runner.

    Args:
        work_dir (Path): Folder of the run.
        **settings: Overrides, with ``__`` for the dots.
    """
    cfg = Config.fromfile(CONFIG)
    cfg.merge_from_dict(
        {
            'work_dir': str(work_dir),
            # Runners of one name would share message hub and logger.
            'experiment_name': f'faults_run_{next(_COUNT)}',
            'log_level': 'WARNING',
            'train_dataloader.num_workers': 0,
            **{k.replace('__', '.'): v for k, v in settings.items()},
        }
    )
    runner = Runner.from_cfg(adapt_config(cfg))
    runner.train()
    return runner
