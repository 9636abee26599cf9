# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The noise scale through the stock Runner, on one process.

An update is 8 points, and an epoch 12 updates. (Several ranks:
tests/distributed/test_gradient_noise.py.)
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import MMFullyShardedDataParallel as FSDP
from mmengine.registry import HOOKS

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.hooks import GradientNoiseHook
from mmdet_megdet.noise import Measurement, read_records
from mmdet_megdet.updates import SkipUpdate, UpdateTrainLoop
from tests.data.noise_task import definition, train_on_points
from tests.data.tiny_run import curves_of, log_of


@HOOKS.register_module(force=True)
class SkipSomeUpdates(Hook):
    """Leaves the second update out, and the third have no finite gradient."""

    def before_micro_step(self, runner, index, data_batch):
        if runner.iter == 1 and index == 1:
            runner.model.register_forward_pre_hook(self.skip)
        if runner.iter == 2:
            data_batch['inputs'].fill_(torch.inf)

    def skip(self, model, inputs):
        model._forward_pre_hooks.clear()
        raise SkipUpdate


def saved(folder, epoch):
    """A checkpoint's measurements."""
    path = folder / f'epoch_{epoch}.pth'
    return torch.load(path)['gradient_noise']['measurements']


def test_measurements_against_their_definition(tmp_path):
    """Updates without a step or without a number have none."""
    hooks = ('WeightRecorder', 'SkipSomeUpdates')
    runner, recorder = train_on_points(
        tmp_path,
        train_cfg__max_epochs=2,
        default_hooks__checkpoint__interval=2,
        optim_wrapper__type='AmpOnCPU',
        optim_wrapper__clip_grad=dict(max_norm=0.01),
        custom_hooks=[dict(type=name) for name in hooks],
    )
    measurements, records = saved(tmp_path, 2), read_records(tmp_path)
    assert [r.update for r in records] == [1, *range(4, 25)]
    loader = runner.train_loop.dataloader
    for exact, record in zip(measurements, records, strict=True):
        epoch, index = divmod(record.update - 1, 12)
        row = loader.batch_sampler.layout(epoch)[index]
        found = loader.dataset.points[row].reshape(4, 2, 9)
        weights = recorder.weights[record.update - 1]
        # Where one of a micro-step's images lacks the part, it has none.
        right = definition((weights - found.mean(1)).numpy(), 8)
        assert exact.keys() == record.parts.keys() == right.keys()
        for name, moments in right.items():
            assert np.allclose(exact[name], moments, 1e-10, 1e-12), name
            assert [*record.parts[name].values()] == exact[name]
    parts = records[-1].parts
    assert records[-1] == Measurement(24, 2, 8, 0.1, parts, 1, 4, 2)
    # A ratio of averages, the later the heavier.
    weights = 0.97 ** np.arange(22)[::-1]
    g2, s = weights @ [parts['total'] for parts in measurements]
    (hook,) = [h for h in runner.hooks if isinstance(h, GradientNoiseHook)]
    assert hook.latest['total'].value == pytest.approx(s / g2)
    drawn = curves_of(tmp_path, 'gradient_noise/noise_scale')
    assert drawn[-1] == (24, hook.latest['total'].value)
    assert (
        'around update 24, lr 0.1, in images (95 % interval; 22 measurements)'
        f': total {hook.latest["total"]}; first {hook.latest["first"]}, '
    ) in log_of(tmp_path)


def test_between_looks_nothing_is_attached_and_nothing_changes(tmp_path):
    _, plain = train_on_points(tmp_path, default_hooks__grad_noise=None)
    runner, watched = train_on_points(
        tmp_path, default_hooks__grad_noise__interval=5
    )
    looks = [number for number, on in enumerate(watched.hooked, 1) if on]
    assert looks == [r.update for r in read_records(tmp_path)] == [5, 10]
    assert torch.equal(watched.last, plain.last)
    assert not any(p._backward_hooks for p in runner.model.parameters())
    assert 'step' not in vars(runner.optim_wrapper)


def test_resuming_goes_on_on_other_hardware(tmp_path):
    """With what was measured; on the same, see test_module_variance.py."""
    settings = dict(default_hooks__checkpoint__interval=1)
    train_on_points(tmp_path, **settings)
    first = saved(tmp_path, 1)
    settings |= dict(train_cfg__max_epochs=2, train_dataloader__batch_size=4)
    path = str(tmp_path / 'epoch_1.pth')
    train_on_points(tmp_path, resume=True, load_from=path, **settings)
    records = read_records(tmp_path)
    assert [r.micro_steps for r in records] == [4] * 12 + [2] * 12
    both = saved(tmp_path, 2)
    assert (len(both), both[:12]) == (24, first)


@pytest.mark.parametrize(('settings', 'message'), [
    (dict(train_cfg=dict(_delete_=True, by_epoch=True, max_epochs=1),
          train_dataloader__batch_sampler=None),
     "Set train_cfg.type='UpdateTrainLoop'"),
    (dict(custom_hooks=[dict(type='GradientNoiseHook')]), 'several'),
    (dict(model__frozen=True), 'nothing in the model is trained'),
    (dict(default_hooks__grad_noise__decay=1.0), 'decay=1.0 must'),
    (dict(default_hooks__grad_noise__interval=0), 'interval=0 must'),
    (dict(default_hooks__grad_noise__interval=2.5), 'interval=2.5 must'),
])  # fmt: skip
def test_what_cannot_be_measured_is_refused(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        train_on_points(tmp_path, **settings)


def test_gradients_that_are_not_whole_are_refused():
    loop, model = UpdateTrainLoop.__new__(UpdateTrainLoop), FSDP.__new__(FSDP)
    runner = SimpleNamespace(
        train_loop=loop, hooks=[], optim_wrapper=None, model=model
    )
    with pytest.raises(ConfigError, match='does not have whole gradients'):
        GradientNoiseHook().before_train(runner)
