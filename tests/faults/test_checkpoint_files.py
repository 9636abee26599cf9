# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import errno
import os

import pytest
import torch

from mmdet_megdet.errors import CheckpointError
from mmdet_megdet.faults import latest_checkpoint
from mmdet_megdet.faults.checkpoint import (
    is_whole,
    remove_unfinished,
    write_atomically,
)


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


def test_the_noted_one_is_taken(work_dir, capsys):
    assert latest_checkpoint(work_dir) == str(work_dir / 'epoch_2.pth')
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


def test_nothing_that_is_whole(work_dir):
    for path in work_dir.glob('epoch*.pth'):
        cut(path)
    with pytest.raises(CheckpointError, match=r'damaged.*no other whole one'):
        latest_checkpoint(work_dir)
