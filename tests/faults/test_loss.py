# Copyright (c) mmdet_megdet contributors. All rights reserved.
import math
from itertools import pairwise

import pytest
import torch

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
        acc=torch.tensor(math.nan),
    )
    losses = named_losses(output)
    assert losses == {'loss_cls[0]': 1, 'loss_cls[1]': 3, 'loss_box': 5}
    assert describe_not_finite(losses) == ''
    assert named_losses(torch.ones(3)) == {}
    assert describe_not_finite({}) == ''
    for values, text in {
        (1, 2): '',
        (1, math.nan): 'loss_1 is nan',
        # Their sum is NaN.
        (math.inf, -math.inf): 'loss_0 is inf, loss_1 is -inf',
        (3e38, 3e38): 'the sum of losses is 6e+38',
    }.items():
        losses = {f'loss_{i}': torch.tensor(v) for i, v in enumerate(values)}
        assert describe_not_finite(losses) == text


@pytest.fixture
def train(tmp_path):
    """Two epochs of four updates, two micro-steps of two images each."""
    write_images(tmp_path / 'data')

    def run(**settings):
        ours = dict(model__fault='pixel', train_cfg__max_epochs=2)
        ours['default_hooks__finite_loss__on_failure'] = 'skip'
        cfg = images_config(tmp_path / 'data', tmp_path, **ours | settings)
        return train_on_images(cfg)

    return run


def test_skipped_update_leaves_no_trace(train, tmp_path, recwarn):
    """Whichever micro-step is spoilt; nor does the GradScaler hear of it."""
    runner, states = train(
        # The second is not gone through where the first one is spoilt.
        model__fault_iterations=(1, 10),
        optim_wrapper__type='AmpOnCPU',
        custom_hooks=[dict(type='EMAHook')],
    )
    assert runner.optim_wrapper.loss_scaler.get_scale() == 4.0
    steps = [changed(*pair) for pair in pairwise(states)]
    expected = [{'weights', 'buffers', 'momenta', 'ema'}] * 8
    expected[0] = expected[5] = {'ema'}
    assert steps == expected
    # What was gathered for it is not in the next update.
    assert states[1]['gradients'] == states[6]['gradients'] == {}
    last = [value for part in states[-1].values() for value in part.values()]
    assert all(value.isfinite().all() for value in last)
    assert states[-1]['buffers']['norm.num_batches_tracked'] == 6
    assert runner.iter == 8
    # The warm-up counts 8 updates of its 10, and no scheduler complains.
    assert runner.optim_wrapper.get_lr()['lr'] == pytest.approx([0.05 * 0.82])
    assert not [w for w in recwarn if 'optimizer.step' in str(w.message)]
    log = log_of(tmp_path)
    assert (
        'in epoch 1, update 1 of 4, micro-step 2 of 2: loss_corner[0] is nan, '
        'loss_corner[1] is nan, loss_size is nan on rank 0, with images '
    ) in log
    assert 'epoch 2, update 2 of 4, micro-step 1 of 2' in log
    assert 'The update is skipped, number 2 of at most 10.' in log
    assert 'skipped_updates: 2' in log
    # Counts go on in a resumed run.
    saved = torch.load(tmp_path / 'epoch_2.pth')
    assert saved['message_hub']['runtime_info']['skipped_updates'] == 2


@pytest.mark.parametrize(('settings', 'error', 'told'), [
    (dict(model__fault_iterations=(1, 2, 4, 6),
          default_hooks__finite_loss__max_skips=3),
     NonFiniteLossError, '3 updates .* the limit'),
    (dict(train_cfg=dict(_delete_=True, by_epoch=True, max_epochs=1),
          train_dataloader__batch_sampler=None,
          default_hooks__preemption=None),
     ConfigError, "type='UpdateTrainLoop'"),
])  # fmt: skip
def test_where_skipping_ends(train, settings, error, told):
    """At the limit, and without the loop that knows updates."""
    with pytest.raises(error, match=told):
        train(**settings)
