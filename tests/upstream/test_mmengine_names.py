# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the private names of mmengine are used for still holds.

Where nothing else shows it: most are in use in every training.
"""

import numpy as np
import torch
from mmdet.structures import DetDataSample
from mmdet.visualization import DetLocalVisualizer
from mmengine.optim import OneCycleLR
from mmengine.runner import checkpoint

from mmdet_megdet.upstream.mmengine_names import (
    annealing_functions,
    draw_on_every_rank,
    load_as_torch_does,
)
from tests.schedulers.steps import make_wrapper


def test_annealing_functions_are_those_in_use():
    functions = set()
    for strategy in ('cos', 'linear'):
        options = dict(eta_max=1, total_steps=4, anneal_strategy=strategy)
        state = OneCycleLR(make_wrapper(0.1), **options).state_dict()
        functions.add(state['anneal_func'])
    assert functions == set(annealing_functions().values())


def test_drawing_on_another_rank(tmp_path, monkeypatch):
    monkeypatch.setattr('mmengine.dist.utils.is_main_process', lambda: False)
    visualizer = DetLocalVisualizer(vis_backends=None)
    path = tmp_path / 'drawn.png'
    what = 'image', np.zeros((32, 48, 3), np.uint8), DetDataSample()
    visualizer.add_datasample(*what, out_file=str(path))
    assert not path.exists()
    draw_on_every_rank(visualizer)
    visualizer.dataset_meta = {}
    visualizer.add_datasample(*what, out_file=str(path))
    assert path.exists()


def test_loader_of_the_forks_is_replaced(monkeypatch):
    load_as_torch_does()
    assert not hasattr(checkpoint, '_safe_torch_load')  # MMEngine's own
    monkeypatch.setattr(checkpoint, '_safe_torch_load', None, raising=False)
    load_as_torch_does()
    assert checkpoint._safe_torch_load is torch.load
