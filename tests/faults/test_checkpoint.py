# Copyright (c) mmdet_megdet contributors. All rights reserved.
import errno
import os
from pathlib import Path

import pytest
import torch
from mmengine.fileio import LocalBackend
from mmengine.runner import Runner

from mmdet_megdet.errors import CheckpointError
from mmdet_megdet.faults import AtomicCheckpointHook, latest_checkpoint
from mmdet_megdet.faults.checkpoint import write_atomically
from tests.data.faults_run import CONFIG, train
from tests.data.tiny_run import config_of


def test_the_oldest_goes_when_the_new_one_is_whole(tmp_path, monkeypatch):
    events = []
    replace, remove = os.replace, LocalBackend.remove

    def note_replace(source, target):
        replace(source, target)
        events.append(f'whole {Path(target).name}')

    def note_remove(self, path):
        events.append(f'removed {Path(path).name}')
        remove(self, path)

    monkeypatch.setattr(os, 'replace', note_replace)
    monkeypatch.setattr(LocalBackend, 'remove', note_remove)
    errors = iter([3.0, 2.0, 4.0])
    monkeypatch.setattr(
        'tests.data.tiny_task.TinyError.compute_metrics',
        lambda *_: dict(error=next(errors)),
    )
    train(tmp_path, default_hooks__checkpoint__max_keep_ckpts=1)
    assert events == [
        'whole epoch_1.pth',
        'whole best_error_epoch_1.pth',
        # MMEngine saves again what now knows of its best.
        'whole epoch_1.pth',
        'whole epoch_2.pth',
        'removed epoch_1.pth',
        'whole best_error_epoch_2.pth',
        'whole epoch_2.pth',
        'removed best_error_epoch_1.pth',
        'whole epoch_3.pth',
        'removed epoch_2.pth',
    ]
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'epoch_3.pth')


def test_the_oldest_waits_for_any_backend(tmp_path, monkeypatch):
    """And the one of inside an epoch goes."""
    events = []

    def note(name):
        done = getattr(LocalBackend, name)

        def noted(self, *args):
            events.append(f'{name} {Path(args[-1]).name}')
            done(self, *args)

        monkeypatch.setattr(LocalBackend, name, noted)

    note('put')
    note('remove')
    hook = 'default_hooks__checkpoint__'
    options = dict(max_keep_ckpts=1, save_best=None)
    options['backend_args'] = dict(backend='local')
    options = {f'{hook}{k}': v for k, v in options.items()}
    before_train = AtomicCheckpointHook.before_train

    def interrupted(hook, runner):
        before_train(hook, runner)
        path = tmp_path / 'iter_3.pth'
        path.touch()
        runner.message_hub.update_info('interrupted_ckpt', str(path))

    monkeypatch.setattr(AtomicCheckpointHook, 'before_train', interrupted)
    train(tmp_path, **options)
    assert events == [
        'put epoch_1.pth',
        'remove iter_3.pth',
        'put epoch_2.pth',
        'remove epoch_1.pth',
        'put epoch_3.pth',
        'remove epoch_2.pth',
    ]


def test_the_best_alone(tmp_path, monkeypatch):
    """The previous best goes without another checkpoint that is saved."""
    errors = iter([3.0, 2.0, 1.0])
    monkeypatch.setattr(
        'tests.data.tiny_task.TinyError.compute_metrics',
        lambda *_: dict(error=next(errors)),
    )
    only_best = dict(interval=-1, save_last=False)
    settings = {
        f'default_hooks__checkpoint__{k}': v for k, v in only_best.items()
    }
    train(tmp_path, **settings)
    saved = [path.name for path in tmp_path.glob('*.pth')]
    assert saved == ['best_error_epoch_3.pth']


def test_validation_alone(tmp_path):
    settings = dict(default_hooks__checkpoint__save_best=None)
    Runner.from_cfg(config_of(CONFIG, tmp_path, **settings)).val()


def test_a_checkpoint_does_not_have_other_files_deleted(tmp_path):
    train(tmp_path / 'run', train_cfg__max_epochs=1)
    path = tmp_path / 'run' / 'epoch_1.pth'
    content = torch.load(path)
    hub = content['message_hub']
    victims = tmp_path / 'interrupted_ckpt', tmp_path / 'best_ckpt'
    hub['runtime_info']['best_score'] = 9.0
    for victim in victims:
        victim.touch()
        hub['runtime_info'][victim.name] = str(victim)
        hub['resumed_keys'][victim.name] = True
    torch.save(content, path)
    train(tmp_path / 'run', resume=True, load_from=str(path))
    assert (tmp_path / 'run' / 'best_error_epoch_2.pth').exists()
    assert all(victim.exists() for victim in victims)


def test_a_disk_that_does_not_take_it(tmp_path, monkeypatch):
    path = tmp_path / 'a.pth'
    write_atomically(b'first', path)

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, 'fsync', full)
    message = r'cannot write .*a.pth \(6 bytes\): No space left on device'
    with pytest.raises(CheckpointError, match=message):
        write_atomically(b'second', path)
    assert path.read_bytes() == b'first'
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def work_dir(tmp_path):
    """Two epochs, the second of which is noted, and others' files."""
    state = dict(meta={}, state_dict=torch.ones(1000))
    whole = state | dict(message_hub={}, optimizer={})
    # The tenth is of an earlier training.
    for time, number in enumerate((10, 1, 2)):
        path = tmp_path / f'epoch_{number}.pth'
        torch.save(whole, path)
        os.utime(path, (time, time))
    torch.save(state, tmp_path / 'best_epoch_2.pth')
    (tmp_path / 'of_another_program.pth').touch()
    (tmp_path / 'last_checkpoint').write_text(str(path))
    return tmp_path


@pytest.mark.parametrize(('name', 'kept', 'taken', 'reason'), [
    ('epoch_2.pth', 3000, 1, 'not there or cut off'),
    ('epoch_2.pth', None, 1, 'epoch_2.pth, which'),
    ('last_checkpoint', None, 2, 'names no'),
    ('last_checkpoint', 0, 2, 'names no'),
])  # fmt: skip
def test_the_newest_whole_one_is_taken(
    work_dir, capsys, name, kept, taken, reason
):
    assert latest_checkpoint(work_dir) == str(work_dir / 'epoch_2.pth')
    assert capsys.readouterr().out == ''
    if kept is None:
        (work_dir / name).unlink()
    else:
        os.truncate(work_dir / name, kept)
    path = str(work_dir / f'epoch_{taken}.pth')
    assert latest_checkpoint(work_dir) == path
    said = capsys.readouterr().out
    assert f'continuing from {path}: ' in said
    assert reason in said


def test_nothing_that_is_whole(work_dir):
    for path in work_dir.glob('epoch*.pth'):
        os.truncate(path, 3000)
    with pytest.raises(CheckpointError, match=r'cut off.*no other whole one'):
        latest_checkpoint(work_dir)
