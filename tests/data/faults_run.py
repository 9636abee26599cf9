# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Trains faults_config.py in this process."""

from pathlib import Path
from typing import Any

from mmengine.runner import Runner

from tests.data import tiny_run
from tests.tools.command import ROOT

CONFIG = ROOT / 'tests' / 'data' / 'faults_config.py'


def train(work_dir: Path, **settings: Any) -> Runner:
    """Train, and return the runner; settings have ``__`` for the dots."""
    settings = dict(log_level='WARNING') | settings
    return tiny_run.train(tiny_run.config_of(CONFIG, work_dir, **settings))
