# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import sys

import pytest

from tests.tools.checks.findings import levels
from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS))  # as for a script there

from checks import machine
from checks.report import FAIL, PASS, WARN


@pytest.mark.parametrize(
    ('hard', 'level'), [(256, FAIL), (2048, WARN), (4096, PASS), (-1, PASS)]
)
def test_open_files(hard, level):
    assert machine.check_open_files((256, hard)).level == level


@pytest.mark.parametrize(
    ('need', 'level'),
    [
        (machine.LoaderNeed(1, 1.0), PASS),
        (machine.LoaderNeed(2, 10**18), FAIL),
    ],
)
def test_shared_memory(tmp_path, need, level):
    assert machine.check_shared_memory(need, str(tmp_path)).level == level


def test_no_shared_memory(tmp_path):
    finding = machine.check_shared_memory(None, f'{tmp_path}/none')
    assert finding.level == FAIL


def test_disk(tmp_path):
    """For a work folder that is not there yet."""
    folder = f'{tmp_path}/a/b'
    finding = machine.check_disk(folder, 10**18, 3, 'so')
    assert finding.level == FAIL
    assert '3 checkpoints of about 1e+09 GB = 3e+09 GB' in finding.text
    assert machine.check_disk(folder, 1, 3, 'so').level == PASS


def test_locked_memory(tmp_path):
    assert not list(machine.check_locked_memory(tmp_path / 'none'))
    (tmp_path / 'mlx5_0').mkdir()
    assert levels(machine.check_locked_memory(tmp_path, 65536)) == [WARN]
    assert levels(machine.check_locked_memory(tmp_path, -1)) == [PASS]
