# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

from types import SimpleNamespace

import torch
from mmengine.optim import OneCycleLR

from mmdet_megdet.upstream.mmengine_names import annealing_functions, resumes
from tests.data.faults_run import train


def test_annealing_functions_are_those_in_use():
    functions = set()
    for strategy in ('cos', 'linear'):
        optimizer = torch.optim.SGD([torch.ones(1)], lr=1)
        scheduler = OneCycleLR(
            optimizer, eta_max=1, total_steps=4, anneal_strategy=strategy
        )
        functions.add(scheduler.state_dict()['anneal_func'])
    assert functions == set(annealing_functions().values())


def test_resumes(tmp_path):
    runner = train(tmp_path, train_cfg__max_epochs=1)
    assert not resumes(runner)
    assert not resumes(SimpleNamespace(_resume=False))
    assert resumes(SimpleNamespace(_resume=True))
