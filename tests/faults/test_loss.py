# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS

from mmdet_megdet.errors import ConfigError, NonFiniteLossError
from mmdet_megdet.faults.loss import (
    describe_not_finite,
    named_losses,
)
from tests.data.image_run import changed, images_config, train_on_images
from tests.data.image_task import write_images
from tests.data.tiny_run import log_of


def test_losses_are_those_that_are_summed_up():
    output = dict(
        loss_cls=[torch.tensor(1.0), torch.tensor([2.0, 4.0])],
        loss_box=torch.tensor(5, dtype=torch.float16),
        acc=torch.tensor(float('nan')),
    )
    losses = named_losses(output)
    assert losses == {'loss_cls[0]': 1, 'loss_cls[1]': 3, 'loss_box': 5}
    assert describe_not_finite(losses) == ''
    assert named_losses(torch.ones(3)) == {}
    assert describe_not_finite({}) == ''
    for values, text in {
        (1.0, float('nan')): 'loss_1 is nan',
        (float('-inf'), 1.0): 'loss_0 is -inf',
        # Their sum is NaN.
        (float('inf'), float('-inf')): 'loss_0 is inf, loss_1 is -inf',
        (3e38, 3e38): 'the sum of losses is 6e+38',
    }.items():
        losses = {f'loss_{i}': torch.tensor(v) for i, v in enumerate(values)}
        assert describe_not_finite(losses) == text


@OPTIM_WRAPPERS.register_module(force=True)
class ScalingOptimWrapper(AmpOptimWrapper):
    """AmpOptimWrapper on the CPU, which it refuses, without autocast."""

    def __init__(self, **kwargs):
        OptimWrapper.__init__(self, **kwargs)
        self._scale_update_param = None
        self.loss_scaler = torch.amp.GradScaler('cpu', init_scale=1024.0)

    def optim_context(self, model):
        return OptimWrapper.optim_context(self, model)


@pytest.fixture
def train(tmp_path):
    """Two epochs of four updates, two micro-steps of two images each."""
    write_images(tmp_path / 'data')

    def run(**settings):
        settings = {
            'default_hooks__finite_loss__on_failure': 'skip',
            'model__fault': 'pixel',
            'train_cfg__max_epochs': 2,
        } | settings
        cfg = images_config(tmp_path / 'data', tmp_path, **settings)
        return train_on_images(cfg)

    return run


def test_skipped_update_leaves_no_trace(train, tmp_path):
    """Whichever micro-step is spoilt; nor does the GradScaler hear of it."""
    runner, states = train(
        # The second is not gone through where the first one is spoilt.
        model__fault_iterations=(2, 10),
        optim_wrapper__type='ScalingOptimWrapper',
        custom_hooks=[dict(type='EMAHook')],
    )
    assert runner.optim_wrapper.loss_scaler.get_scale() == 1024.0
    steps = [changed(*pair) for pair in pairwise(states)]
    expected = [{'weights', 'buffers', 'momenta', 'ema'}] * 8
    expected[1] = expected[5] = {'ema'}
    assert steps == expected
    # What was gathered for it is not in the next update.
    assert states[2]['gradients'] == states[6]['gradients'] == {}
    last = [value for part in states[-1].values() for value in part.values()]
    assert all(value.isfinite().all() for value in last)
    assert states[-1]['buffers']['norm.num_batches_tracked'] == 6
    assert runner.iter == 8
    # The warm-up counts 8 updates of its 10.
    assert runner.optim_wrapper.get_lr()['lr'] == pytest.approx([0.05 * 0.82])
    log = log_of(tmp_path)
    assert (
        'in epoch 1, update 2 of 4, micro-step 1 of 2: loss_corner[0] is nan, '
        'loss_corner[1] is nan, loss_size is nan on rank 0, with images '
    ) in log
    assert 'epoch 2, update 2 of 4, micro-step 2 of 2' in log
    assert 'The update is skipped, number 2 of at most 10.' in log
    assert 'skipped_updates: 2' in log
    # Counts go on in a resumed run.
    saved = torch.load(tmp_path / 'epoch_2.pth')
    assert saved['message_hub']['runtime_info']['skipped_updates'] == 2


def test_the_limit(train):
    with pytest.raises(NonFiniteLossError, match=r'3 updates .* the limit'):
        train(
            model__fault_iterations=(1, 2, 4, 6),
            default_hooks__finite_loss__max_skips=3,
        )


def test_skipping_needs_the_loop(train):
    with pytest.raises(ConfigError, match="type='UpdateTrainLoop'"):
        train(
            train_cfg=dict(_delete_=True, by_epoch=True, max_epochs=1),
            train_dataloader__batch_sampler=None,
            default_hooks__preemption=None,
        )
