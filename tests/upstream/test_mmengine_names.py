# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the private names of mmengine are used for still holds."""

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmdet.visualization import DetLocalVisualizer
from mmengine.dataset import BaseDataset
from mmengine.optim import (
    ConstantLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    OptimWrapper,
)
from mmengine.runner import Runner, checkpoint

from mmdet_megdet.schedulers import PreciseLinearWarmup
from mmdet_megdet.upstream.mmengine_names import (
    accumulation_of,
    annealing_functions,
    as_on_rank_0,
    built_loop,
    count_skipped_update,
    has_seed_of_each_rank,
    is_cut_to_batches,
    load_as_torch_does,
    resumes,
    schedulers_of,
    set_accumulation,
    steps_counted,
)


def make_wrapper(**options):
    weight = torch.nn.Parameter(torch.zeros(1))
    return OptimWrapper(torch.optim.SGD([weight], lr=0.1), **options)


class Three(BaseDataset):
    def load_data_list(self):
        return [dict()] * 3


def test_count_skipped_update(recwarn):
    """Schedulers go on as after a step, and so does the accumulation."""
    wrapper = make_wrapper(accumulative_counts=2)
    ours = PreciseLinearWarmup(wrapper, start_factor=0.5, end=4)
    stock = LinearLR(wrapper, by_epoch=False, end=4)
    wrapper.initialize_count_status(torch.nn.Module(), 1, 8)
    assert not wrapper.should_update()
    count_skipped_update(wrapper, 2)
    assert wrapper.should_update()
    ours.step()
    stock.step()
    assert ours._global_step == stock._global_step == 1
    assert not [w for w in recwarn if 'optimizer.step' in str(w.message)]


def test_annealing_functions_are_those_in_use():
    functions = set()
    for strategy in ('cos', 'linear'):
        scheduler = OneCycleLR(
            make_wrapper(), eta_max=1, total_steps=4, anneal_strategy=strategy
        )
        functions.add(scheduler.state_dict()['anneal_func'])
    assert functions == set(annealing_functions().values())


def test_the_schedulers_of_an_optimizer():
    wrapper = make_wrapper()
    found = {MultiStepLR(wrapper, [3]), ConstantLR(wrapper.optimizer)}
    elsewhere = ConstantLR(make_wrapper())
    for given in (wrapper.optimizer, wrapper):
        assert set(schedulers_of(given)) == found
    assert elsewhere not in found


def test_drawing_on_another_rank(tmp_path, monkeypatch):
    monkeypatch.setattr('mmengine.dist.utils.is_main_process', lambda: False)
    visualizer = DetLocalVisualizer(vis_backends=None)
    path = tmp_path / 'drawn.png'
    what = 'image', np.zeros((32, 48, 3), np.uint8), DetDataSample()
    visualizer.add_datasample(*what, out_file=str(path))
    assert not path.exists()
    with as_on_rank_0():
        visualizer.dataset_meta = {}
        visualizer.add_datasample(*what, out_file=str(path))
    assert path.exists()


def test_loader_of_the_forks_is_replaced(monkeypatch):
    load_as_torch_does()
    assert not hasattr(checkpoint, '_safe_torch_load')  # MMEngine's own
    monkeypatch.setattr(checkpoint, '_safe_torch_load', None, raising=False)
    load_as_torch_does()
    assert checkpoint._safe_torch_load is torch.load


def test_counts_of_an_optim_wrapper():
    wrapper = make_wrapper()
    set_accumulation(wrapper, 3)
    assert accumulation_of(wrapper) == 3
    wrapper.initialize_count_status(torch.nn.Module(), 0, 6)
    steps = []
    for _ in range(6):
        wrapper.update_params(torch.zeros((), requires_grad=True))
        steps.append(wrapper.should_update())
    assert steps == [False, False, True] * 2
    # Steps are counted from the latest scheduler on.
    for _ in range(2):
        ConstantLR(wrapper)
        begun = steps_counted(wrapper)
        wrapper.step()
        wrapper.step()
        assert (begun, steps_counted(wrapper)) == (-1, 1)


@pytest.mark.parametrize('asked', [False, True])
def test_what_a_runner_was_told_and_has_built(tmp_path, asked):
    runner = Runner(
        torch.nn.Linear(1, 1),
        str(tmp_path),
        train_dataloader=dict(
            batch_size=2,
            num_workers=0,
            dataset=dict(type=Three),
            sampler=dict(type='DefaultSampler', shuffle=True),
            num_batch_per_epoch=1 if asked else None,
        ),
        train_cfg=dict(by_epoch=True, max_epochs=1),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=1)),
        resume=asked,
        randomness=dict(seed=0, diff_rank_seed=asked),
        log_level='ERROR',
        experiment_name=f'told_{asked}',
    )
    assert resumes(runner) is asked
    assert has_seed_of_each_rank(runner) is asked
    assert built_loop(runner, 'train') is None
    loop = runner.train_loop
    assert built_loop(runner, 'train') is loop
    assert built_loop(runner, 'val') is None
    assert is_cut_to_batches(loop.dataloader.dataset) is asked
