# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The noise scale through the stock Runner, on one process.

An update is 8 points, and an epoch 12 updates. (Several ranks:
tests/distributed/test_gradient_noise.py.)
"""

from __future__ import annotations

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
from tests.data.noise_run import curves_of, noise_config, train_on_points
from tests.data.noise_task import DEVIATIONS, MEANS, SIZES, definition
from tests.data.tiny_run import log_of
from tests.data.tiny_task import AmpOnCPU  # noqa: F401


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


@pytest.fixture
def train(tmp_path):
    def run(**settings):
        return train_on_points(noise_config(tmp_path, **settings))

    return run


def saved(folder, epoch):
    """A checkpoint's measurements."""
    path = folder / f'epoch_{epoch}.pth'
    return torch.load(path)['gradient_noise']['measurements']


def restated(runner, recorder, epoch, index, images):
    """An update's moments by part, from its points and weights."""
    loop = runner.train_loop
    row = loop.dataloader.batch_sampler.layout(epoch)[index]
    found = loop.dataloader.dataset.points[row].reshape(-1, images, 9)
    weights = recorder.weights[epoch * 12 + index]
    # Where one of a micro-step's images lacks the part, it has none.
    return definition((weights - found.mean(1)).numpy(), 8)


def test_measurements_against_their_definition(train, tmp_path):
    runner, recorder = train(
        train_cfg__max_epochs=2,
        default_hooks__checkpoint__interval=2,
        optim_wrapper__type='AmpOnCPU',
        optim_wrapper__clip_grad=dict(max_norm=0.01),
    )
    measurements, records = saved(tmp_path, 2), read_records(tmp_path)
    assert [r.update for r in records] == list(range(1, 25))
    for update, (exact, record) in enumerate(
        zip(measurements, records, strict=True)
    ):
        right = restated(runner, recorder, *divmod(update, 12), images=2)
        assert exact.keys() == record.parts.keys() == right.keys()
        for name, moments in right.items():
            assert np.allclose(exact[name], moments, 1e-10, 1e-12), name
            assert [*record.parts[name].values()] == exact[name]
    parts = records[-1].parts
    assert records[-1] == Measurement(24, 2, 8, 0.1, parts, 1, 4, 2)


def test_the_truth_is_in_the_interval(train, tmp_path):
    """Weights that stay at 0, and points that come once.

    So the noise scale is ``sum s^2 / |m|^2``.
    """
    runner, _ = train(
        optim_wrapper__optimizer__lr=0.0,
        train_dataloader__dataset=dict(length=768, missing=False),
        default_hooks__grad_noise__decay=0.999,
    )
    (hook,) = [h for h in runner.hooks if isinstance(h, GradientNoiseHook)]
    scales = hook.latest
    truth = {name: (DEVIATIONS[name] / MEANS[name]) ** 2 for name in SIZES}
    weights = [SIZES[name] * MEANS[name] ** 2 for name in SIZES]
    truth['total'] = np.average([*truth.values()], weights=weights)
    for name, value in truth.items():
        assert scales[name].low < value < scales[name].high < 2 * value
        assert scales[name].measurements == 96
    curves = curves_of(tmp_path, 'gradient_noise/noise_scale')
    assert [step for step, _ in curves] == list(range(1, 97))
    assert curves[-1][1] == pytest.approx(scales['total'].value)
    log = log_of(tmp_path)
    assert 'around update 96, lr 0, in images (95 % interval; 96 m' in log
    assert f'total {scales["total"]}; first {scales["first"]}, ' in log


def test_between_looks_nothing_is_attached_and_nothing_changes(
    train, tmp_path
):
    _, plain = train(default_hooks__grad_noise=None)
    runner, watched = train(default_hooks__grad_noise__interval=5)
    assert [i for i, hooked in enumerate(watched.hooked, 1) if hooked] == [
        5,
        10,
    ]
    assert torch.equal(watched.last, plain.last)
    assert [r.update for r in read_records(tmp_path)] == [5, 10]
    assert not any(p._backward_hooks for p in runner.model.parameters())
    assert 'step' not in vars(runner.optim_wrapper)


def test_updates_without_a_step_or_a_number_are_left_out(train, tmp_path):
    train(
        custom_hooks=[
            dict(type=n) for n in ('WeightRecorder', 'SkipSomeUpdates')
        ],
        optim_wrapper__type='AmpOnCPU',
    )
    updates = [r.update for r in read_records(tmp_path)]
    assert updates == [1, *range(4, 13)]


@pytest.mark.parametrize('images', [2, 4])
def test_resuming_goes_on(tmp_path, images):
    """Bit for bit, and on other hardware from what there was."""
    settings = dict(default_hooks__checkpoint__interval=1)
    whole = noise_config(
        tmp_path / 'whole', train_cfg__max_epochs=2, **settings
    )
    train_on_points(whole)
    began = noise_config(tmp_path / 'parts', **settings)
    train_on_points(began)
    train_on_points(
        noise_config(
            tmp_path / 'parts',
            train_cfg__max_epochs=2,
            train_dataloader__batch_size=images,
            resume=True,
            load_from=str(tmp_path / 'parts' / 'epoch_1.pth'),
            **settings,
        )
    )
    undisturbed, resumed = (
        saved(tmp_path / name, 2) for name in ('whole', 'parts')
    )
    assert len(resumed) == 24
    assert resumed[:12] == undisturbed[:12]
    assert (resumed == undisturbed) == (images == 2)
    records = read_records(tmp_path / 'parts')
    assert [r.micro_steps for r in records] == [4] * 12 + [8 // images] * 12


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (
            dict(
                train_cfg=dict(
                    _delete_=True, type='EpochBasedTrainLoop', max_epochs=1
                ),
                train_dataloader__batch_sampler=None,
            ),
            "Set train_cfg.type='UpdateTrainLoop'",
        ),
        (dict(custom_hooks=[dict(type='GradientNoiseHook')]), 'several'),
        (dict(model__frozen=True), 'nothing in the model is trained'),
        (dict(default_hooks__grad_noise__decay=1.0), 'decay=1.0 must'),
    ],
)
def test_what_cannot_be_measured_is_refused(train, settings, message):
    with pytest.raises(ConfigError, match=message):
        train(**settings)


def test_gradients_that_are_not_whole_are_refused():
    runner = SimpleNamespace(
        train_loop=UpdateTrainLoop.__new__(UpdateTrainLoop),
        hooks=[],
        optim_wrapper=None,
        model=FSDP.__new__(FSDP),
    )
    with pytest.raises(ConfigError, match='does not have whole gradients'):
        GradientNoiseHook().before_train(runner)
