# Copyright (c) mmdet_megdet contributors. All rights reserved.
from unittest.mock import Mock

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import MultiStepLR, OptimWrapper, OptimWrapperDict

from mmdet_megdet.errors import CheckpointError
from mmdet_megdet.faults.resume import config_changes, state_changes
from tests.data.faults_run import CONFIG, train
from tests.data.tiny_run import log_of

WARMUP, STEPS = Config.fromfile(CONFIG).param_scheduler


def test_configs_as_texts():
    today = 'optim_wrapper = dict(a=1)'
    for saved in (None, '', '(', 'a = 1', "optim_wrapper_ = 'b'"):
        assert config_changes(saved, today) is None
    # The same kinds by another name.
    one, several = "dict(type='StepLR')", "[dict(type='b.StepLR')]"
    texts = (f'{today}\nparam_scheduler = {text}' for text in (one, several))
    assert config_changes(*texts) == []


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    """What a run of one epoch has written."""
    folder = tmp_path_factory.mktemp('trained')
    train(folder, train_cfg__max_epochs=1)
    return folder / 'epoch_1.pth'


def go_on(work_dir, checkpoint, max_epochs=2, **settings):
    """Return the runner, and what the hook has logged."""
    settings |= dict(resume=True, load_from=str(checkpoint))
    runner = train(work_dir, train_cfg__max_epochs=max_epochs, **settings)
    _, _, text = log_of(work_dir).partition('ResumeReportHook')
    return runner, text.partition(' WARNING ')[0]


def test_nothing_changed_nothing_said(tmp_path, checkpoint):
    """Nor where what has changed has no effect on a training."""
    settings = dict(log_processor__window_size=3)
    assert go_on(tmp_path, checkpoint, 1, **settings)[1] == ''


CHANGED = dict(
    optim_wrapper__optimizer__lr=0.01,
    optim_wrapper__optimizer__weight_decay=0.5,
    param_scheduler=[
        dict(WARMUP, start_factor=0.2),  # which tells itself
        dict(STEPS, end=7, milestones=[2, 4], gamma=0.5),
    ],
    randomness__seed=8,
    model__norm_cfg__eps=0.001,
)


def test_what_is_taken_from_where(tmp_path, checkpoint):
    runner, text = go_on(tmp_path, checkpoint, **CHANGED)
    of_state, of_config = text.split("These are today's config's")
    assert [line.strip() for line in of_state.splitlines()[3:]] == [
        'optim_wrapper.optimizer.lr: 0.05 -> 0.01',
        'optim_wrapper.optimizer.weight_decay: 0 -> 0.5',
        'param_scheduler.1.end: 4 -> 7',
        'param_scheduler.1.gamma: 0.1 -> 0.5',
        'param_scheduler.1.milestones: [3] -> [2, 4]',
        'randomness.seed: 7 -> 8',
    ]
    assert 'train_cfg.max_epochs: 1 -> 2' in of_config
    assert 'model.norm_cfg.eps: not set -> 0.001' in of_config
    # And so it is.
    (group,) = runner.optim_wrapper.param_groups
    assert (group['initial_lr'], group['weight_decay']) == (0.05, 0)
    _, steps = runner.param_schedulers
    assert (list(steps.milestones), steps.gamma, steps.end) == ([3], 0.1, 4)
    assert (runner.seed, runner.max_epochs) == (7, 2)
    assert runner.model.norm.eps == 0.001

    # The checkpoint has this start's config, and the first one's state.
    second = tmp_path / 'epoch_2.pth'
    _, text = go_on(tmp_path / 'again', second, **CHANGED)
    assert all(line in text for line in of_state.splitlines()[3:])
    assert text.count('->') == 7  # one explains the arrow
    # With the first config again, the state is of that.
    _, text = go_on(tmp_path / 'back', second)
    assert 'model.norm_cfg.eps: 0.001 -> not set' in text
    assert text.count('->') == 2


def test_several_optimizers():
    def made(lr, milestones):
        adam = OptimWrapper(torch.optim.Adam([torch.ones(1)], lr=lr))
        return OptimWrapperDict(a=adam), MultiStepLR(adam, milestones)

    then, steps = made(0.1, [2, 3])
    schedulers = dict(a=[steps.state_dict()])
    checkpoint = dict(optimizer=then.state_dict(), param_schedulers=schedulers)
    now, steps = made(0.2, [2])
    runner = Mock(optim_wrapper=now, param_schedulers=dict(a=[steps]), cfg={})
    found = state_changes(checkpoint | dict(meta={}), runner)
    assert list(map(str, found)) == [
        'param_scheduler.a.0.milestones: [2, 3] -> [2]',
        'optim_wrapper.a.optimizer.lr: 0.1 -> 0.2',
    ]


@pytest.mark.parametrize(('settings', 'message'), [
    (dict(param_scheduler=[WARMUP, STEPS, STEPS]), r'3 .* state of 2'),
    (dict(param_scheduler=None), r'0 .* state of 2'),
    (dict(param_scheduler=[WARMUP, dict(type='StepLR', step_size=2)]),
     r"param_scheduler\.1\.type is 'StepLR'.*'MultiStepLR' in that of"),
    (dict(optim_wrapper__optimizer__type='RMSprop'),
     r"optimizer\.type is 'RMSprop'.*'SGD' in that of the checkpoint"),
])  # fmt: skip
def test_states_of_something_else(tmp_path, checkpoint, settings, message):
    with pytest.raises(CheckpointError, match=message) as error:
        go_on(tmp_path, checkpoint, **settings)
    assert 'load_from without resume' in str(error.value)


def test_without_config_and_optimizer(tmp_path, checkpoint):
    content = torch.load(checkpoint)
    del content['meta']['cfg'], content['optimizer']
    del content['message_hub']['runtime_info']['cfg']
    path = tmp_path / 'crafted.pth'
    torch.save(content, path)
    schedulers = [WARMUP, dict(STEPS, gamma=0.5)]
    go_on(tmp_path, path, 1, param_scheduler=schedulers)
    log = log_of(tmp_path)
    assert "crafted.pth holds no config to compare with today's" in log
    assert "crafted.pth does not hold the optimizer's state" in log
    assert 'param_scheduler.1.gamma: 0.1 -> 0.5' in log
