# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Killed while a checkpoint is written, a full disk, and no checkpoint."""

from __future__ import annotations

import os
import subprocess

import pytest
import torch

from mmdet_megdet.faults import latest_checkpoint
from mmdet_megdet.faults.checkpoint import is_whole
from tests.distributed.faults import Run, assert_same_end, record, resume


@pytest.mark.slow
def test_killed_while_writing(tmp_path, undisturbed):
    """Two ranks; the second epoch's checkpoint is cut off."""
    outcome = Run(
        tmp_path,
        torchrun=True,
        default_hooks__checkpoint__max_keep_ckpts=1,
        default_hooks__fault__place='save',
        default_hooks__fault__iteration=8,
    ).finish()
    record('SIGKILL rank 0 while it writes epoch_2.pth', outcome)
    # With max_keep_ckpts=1 MMEngine's hook would have deleted the first.
    assert is_whole(tmp_path / 'epoch_1.pth')
    assert not (tmp_path / 'epoch_2.pth').exists()
    assert (tmp_path / 'epoch_2.pth.unfinished').exists()
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'epoch_1.pth')

    log = resume(tmp_path)
    assert 'epoch_2.pth was cut off while an earlier run wrote it' in log
    assert f'continues from {tmp_path / "epoch_1.pth"}' in log
    assert not (tmp_path / 'epoch_2.pth.unfinished').exists()
    assert_same_end(tmp_path, undisturbed)


@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of 256 KiB; a checkpoint of the tiny run has about 40."""
    if os.geteuid() != 0:
        pytest.skip('needs root, to mount a tmpfs')
    folder = tmp_path / 'disk'
    folder.mkdir()
    command = ['mount', '-t', 'tmpfs', '-o', 'size=256k', 'tmpfs', folder]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f'cannot mount a tmpfs here: {mounted.stderr.strip()}')
    yield folder
    subprocess.run(['umount', folder], check=True)


def test_full_disk(small_disk, tmp_path):
    """The second epoch's checkpoint does not fit; the first one stays."""
    saved = small_disk / 'run' / 'epoch_1.pth'
    training = Run(
        tmp_path / 'run',
        default_hooks__checkpoint__out_dir=small_disk,
        default_hooks__checkpoint__save_best=None,
        default_hooks__checkpoint__max_keep_ckpts=1,
        default_hooks__fault__place='fill',
        default_hooks__fault__iteration=4,
        default_hooks__fault__path=small_disk / 'filler',
    )
    outcome = training.finish()
    record('disk full', outcome)
    assert outcome.statuses == [1, 69]
    log = outcome.logs[0]
    path = saved.with_name('epoch_2.pth')
    assert f'error: cannot write {path} (' in log
    assert 'No space left on device, ' in log
    assert 'Earlier checkpoints are as they were' in log
    assert sorted(p.name for p in saved.parent.iterdir()) == ['epoch_1.pth']
    assert is_whole(saved)
    assert latest_checkpoint(tmp_path / 'run') == str(saved)


def test_nothing_to_resume(tmp_path):
    """Weights alone: every rank says so."""
    path = tmp_path / 'weights.pth'
    torch.save(dict(state_dict={}), path)
    outcome = Run(tmp_path / 'run', '--resume', str(path)).finish()
    record('--resume of weights alone', outcome)
    assert outcome.statuses == [1, 1]
    for log in outcome.logs:
        assert f"error: {path} cannot be resumed from: it has no 'me" in log
        assert f'--cfg-options load_from={path}' in log
        assert 'Traceback' not in log
