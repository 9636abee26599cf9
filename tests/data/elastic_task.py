# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Float64 everywhere, and places where a training waits for the test."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmdet_megdet.faults import PreemptionHook

torch.set_default_dtype(torch.float64)
print('starts with', os.environ.get('WORLD_SIZE'), flush=True)


@HOOKS.register_module()
class WaitHook(Hook):
    """Waits for SIGTERM, or the file ``go_<update>``, ahead of an update.

    ``places`` are updates, from 0, and with how many ranks it waits there.
    """

    def __init__(self, places: dict[int, int]) -> None:
        self.places = places

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if self.places.get(runner.iter) != runner.world_size:
            return
        (hook,) = [h for h in runner.hooks if isinstance(h, PreemptionHook)]
        file = Path(runner.work_dir, f'go_{runner.iter}')
        while not (file.exists() or hook._signal.received()):
            time.sleep(0.05)
