# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Trains faults_config.py in this process."""

from mmengine.runner import Runner

from mmdet_megdet.runtime import adapt_config
from tests.data.tiny_run import config_of
from tests.tools.command import ROOT

CONFIG = ROOT / 'tests' / 'data' / 'faults_config.py'


def train(work_dir, **settings) -> Runner:
    """Train, and return the runner; settings have ``__`` for the dots."""
    cfg = config_of(CONFIG, work_dir, log_level='WARNING', **settings)
    runner = Runner.from_cfg(adapt_config(cfg))
    runner.train()
    return runner
