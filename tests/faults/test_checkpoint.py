# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from mmengine.fileio import LocalBackend
from mmengine.hooks import CheckpointHook

from mmdet_megdet.errors import CheckpointError
from mmdet_megdet.faults import latest_checkpoint
from mmdet_megdet.faults.checkpoint import (
    is_whole,
    remove_unfinished,
    write_atomically,
)
from tests.data.faults_run import train


def give_errors(monkeypatch, *errors):
    """What validation finds, one after the other."""
    following = iter(errors)
    monkeypatch.setattr(
        'tests.data.tiny_task.TinyError.compute_metrics',
        lambda *_: dict(error=next(following)),
    )


def test_the_oldest_goes_when_the_new_one_is_whole(tmp_path, monkeypatch):
    events = []
    replace, remove = os.replace, LocalBackend.remove

    def note_replace(source, target):
        replace(source, target)
        events.append(('whole', Path(target).name))

    def note_remove(self, path):
        events.append(('removed', Path(path).name))
        remove(self, path)

    monkeypatch.setattr(os, 'replace', note_replace)
    monkeypatch.setattr(LocalBackend, 'remove', note_remove)
    give_errors(monkeypatch, 3.0, 2.0, 4.0)
    train(tmp_path, default_hooks__checkpoint__max_keep_ckpts=1)
    note = ('whole', 'last_checkpoint')
    assert events == [
        ('whole', 'epoch_1.pth'),
        note,
        ('whole', 'best_error_epoch_1.pth'),
        # MMEngine saves again what now knows of its best.
        ('whole', 'epoch_1.pth'),
        note,
        ('whole', 'epoch_2.pth'),
        note,
        ('removed', 'epoch_1.pth'),
        ('whole', 'best_error_epoch_2.pth'),
        ('whole', 'epoch_2.pth'),
        note,
        ('removed', 'best_error_epoch_1.pth'),
        ('whole', 'epoch_3.pth'),
        note,
        ('removed', 'epoch_2.pth'),
    ]
    names = {path.name for path in tmp_path.glob('*.pth*')}
    assert names == {'epoch_3.pth', 'best_error_epoch_2.pth'}
    last = Path((tmp_path / 'last_checkpoint').read_text())
    assert last == tmp_path / 'epoch_3.pth'


def test_what_it_keeps_is_what_mmengine_keeps(tmp_path):
    """The same run with either hook leaves the same files."""
    names = {}
    for kind in ('AtomicCheckpointHook', 'CheckpointHook'):
        work_dir = tmp_path / kind
        runner = train(
            work_dir,
            default_hooks__checkpoint__type=kind,
            default_hooks__checkpoint__max_keep_ckpts=2,
            default_hooks__checkpoint__published_keys=['state_dict'],
            default_hooks__preemption=None,
        )
        (hook,) = [h for h in runner.hooks if isinstance(h, CheckpointHook)]
        assert list(hook.keep_ckpt_ids) == [2, 3]
        # Hashes differ: a checkpoint holds the time.
        names[kind] = sorted(
            path.name.split('-')[0] for path in work_dir.glob('*.pth')
        )
    assert names['AtomicCheckpointHook'] == names['CheckpointHook']
    assert 'epoch_2.pth' in names['AtomicCheckpointHook']
    (published,) = (tmp_path / 'AtomicCheckpointHook').glob('epoch_3-*.pth')
    assert list(torch.load(published)) == ['state_dict']


def test_a_checkpoint_does_not_have_other_files_deleted(tmp_path, monkeypatch):
    give_errors(monkeypatch, 2.0, 1.0)
    train(tmp_path / 'run', train_cfg__max_epochs=1)
    path = tmp_path / 'run' / 'epoch_1.pth'
    content = torch.load(path)
    victims = [
        tmp_path / f'{k}.pth' for k in ('interrupted_ckpt', 'best_ckpt')
    ]
    for victim in victims:
        victim.touch()
        hub = content['message_hub']
        hub['runtime_info'][victim.stem] = str(victim)
        hub['resumed_keys'][victim.stem] = True
    torch.save(content, path)
    settings = dict(resume=True, load_from=str(path))
    train(tmp_path / 'run', train_cfg__max_epochs=2, **settings)
    assert (tmp_path / 'run' / 'best_error_epoch_2.pth').exists()
    assert all(victim.exists() for victim in victims)


def test_a_file_is_replaced_at_once(tmp_path, monkeypatch):
    path = tmp_path / 'new' / 'a.pth'
    write_atomically(b'first', path)
    seen = []
    replace = os.replace

    def look_first(source, target):
        # All of the new one is there, beside the old one.
        seen.append((source.read_bytes(), path.read_bytes()))
        replace(source, target)

    monkeypatch.setattr(os, 'replace', look_first)
    write_atomically(b'second', path)
    assert seen == [(b'second', b'first')]
    assert path.read_bytes() == b'second'
    assert list(path.parent.iterdir()) == [path]


def test_a_disk_that_does_not_take_it(tmp_path, monkeypatch):
    path = tmp_path / 'a.pth'
    write_atomically(b'first', path)

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, 'fsync', full)
    message = r'cannot write .*a.pth \(6 bytes\): No space left .*bytes are'
    with pytest.raises(CheckpointError, match=message):
        write_atomically(b'second', path)
    assert path.read_bytes() == b'first'
    assert list(tmp_path.iterdir()) == [path]


def test_leftovers_are_removed_and_named(tmp_path):
    for name in ('epoch_2.pth.unfinished', 'epoch_1.pth'):
        (tmp_path / name).touch()
    assert remove_unfinished(tmp_path) == ['epoch_2.pth']
    assert [p.name for p in tmp_path.iterdir()] == ['epoch_1.pth']


def saved(folder, name, age, optimizer=True):
    """A checkpoint of some seconds ago."""
    content = dict(meta=dict(iter=1), state_dict=dict(a=torch.ones(1000)))
    if optimizer:
        content |= dict(message_hub={}, optimizer={})
    path = folder / name
    torch.save(content, path)
    os.utime(path, (path.stat().st_mtime - age,) * 2)
    return path


def cut(path):
    time = path.stat().st_mtime
    path.write_bytes(path.read_bytes()[:-100])
    os.utime(path, (time, time))
    assert not is_whole(path)


@pytest.fixture
def work_dir(tmp_path):
    """Two epochs, the second of which is noted, and others' files."""
    saved(tmp_path, 'epoch_1.pth', 40)
    saved(tmp_path, 'epoch_10.pth', 60)  # of an earlier training
    saved(tmp_path, 'epoch_2.pth', 30)
    saved(tmp_path, 'best_epoch_2.pth', 20, optimizer=False)
    cut(saved(tmp_path, 'of_another_program.pth', 10))
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'epoch_2.pth'))
    return tmp_path


def test_the_noted_one_is_taken(work_dir, tmp_path_factory, capsys):
    assert latest_checkpoint(work_dir) == str(work_dir / 'epoch_2.pth')
    moved = work_dir.rename(tmp_path_factory.mktemp('moved') / 'run')
    assert latest_checkpoint(moved) == str(moved / 'epoch_2.pth')
    assert capsys.readouterr().out == ''


@pytest.mark.parametrize('fault', ['cut off', 'not there'])
def test_the_newest_whole_one_before_it_is_taken(work_dir, capsys, fault):
    noted, earlier = work_dir / 'epoch_2.pth', work_dir / 'epoch_1.pth'
    cut(noted) if fault == 'cut off' else noted.unlink()
    assert latest_checkpoint(work_dir) == str(earlier)
    said = capsys.readouterr().out
    assert f'last_checkpoint names {noted}, which is ' in said
    assert fault in said
    assert f'continuing from {earlier} instead' in said


@pytest.mark.parametrize('note', ['', None])
def test_without_a_note_the_newest_whole_one_is_taken(work_dir, capsys, note):
    path = work_dir / 'last_checkpoint'
    path.unlink() if note is None else path.write_text(note)
    assert latest_checkpoint(work_dir) == str(work_dir / 'epoch_2.pth')
    assert 'last_checkpoint names no checkpoint' in capsys.readouterr().out


def test_nothing_that_is_whole(work_dir, capsys):
    for path in work_dir.glob('epoch*.pth'):
        cut(path)
    with pytest.raises(CheckpointError, match=r'damaged.*no other whole one'):
        latest_checkpoint(work_dir)
    (work_dir / 'last_checkpoint').unlink()
    assert latest_checkpoint(work_dir) is None
    assert 'starts from the beginning' in capsys.readouterr().out
