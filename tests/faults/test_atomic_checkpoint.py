# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from mmengine.fileio import LocalBackend
from mmengine.hooks import CheckpointHook

from tests.data.faults_run import train


@pytest.fixture
def events(monkeypatch):
    """What happens to files, in its order: (what, name)."""
    found = []
    replace, remove = os.replace, LocalBackend.remove

    def note_replace(source, target):
        replace(source, target)
        found.append(('whole', Path(target).name))

    def note_remove(self, path):
        found.append(('removed', Path(path).name))
        remove(self, path)

    monkeypatch.setattr(os, 'replace', note_replace)
    monkeypatch.setattr(LocalBackend, 'remove', note_remove)
    return found


def test_the_oldest_goes_when_the_new_one_is_whole(
    tmp_path, events, monkeypatch
):
    errors = iter([3.0, 2.0, 4.0])
    monkeypatch.setattr(
        'tests.data.tiny_task.TinyError.compute_metrics',
        lambda *_: dict(error=next(errors)),
    )
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


def test_preemption_needs_it_where_there_are_checkpoints(tmp_path):
    train(tmp_path, default_hooks__checkpoint=None)
    assert not list(tmp_path.glob('*.pth'))
    with pytest.raises(ValueError, match=r'checkpoint\.type='):
        train(tmp_path, default_hooks__checkpoint__type='CheckpointHook')


def test_a_checkpoint_does_not_have_other_files_deleted(tmp_path, monkeypatch):
    errors = iter([2.0, 1.0])
    monkeypatch.setattr(
        'tests.data.tiny_task.TinyError.compute_metrics',
        lambda *_: dict(error=next(errors)),
    )
    train(tmp_path / 'run', train_cfg__max_epochs=1)
    path = tmp_path / 'run' / 'epoch_1.pth'
    content = torch.load(path)
    hub = content['message_hub']
    for key in ('interrupted_ckpt', 'best_ckpt'):
        victim = tmp_path / f'{key}.pth'
        victim.touch()
        hub['runtime_info'][key] = str(victim)
        hub['resumed_keys'][key] = True
    torch.save(content, path)
    train(
        tmp_path / 'run',
        train_cfg__max_epochs=2,
        resume=True,
        load_from=str(path),
    )
    assert (tmp_path / 'run' / 'best_error_epoch_2.pth').exists()
    assert (tmp_path / 'interrupted_ckpt.pth').exists()
    assert (tmp_path / 'best_ckpt.pth').exists()
