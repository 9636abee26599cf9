# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import sys

from tests.tools.checks.findings import levels
from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS))  # as for a script there

from checks import limits
from checks.report import FAIL, PASS, WARN


def test_open_files():
    for hard, level in ((256, FAIL), (2048, WARN), (4096, PASS), (-1, PASS)):
        (finding,) = limits.check_open_files((256, hard))
        assert finding.level == level


def test_shared_memory_and_disk(tmp_path):
    folder = str(tmp_path)
    size = 10**18
    for need, level in (
        (limits.LoaderNeed(1, 1.0), PASS),
        (limits.LoaderNeed(2, size), FAIL),
    ):
        (finding,) = limits.check_shared_memory(need, folder)
        assert finding.level == level
    (finding,) = limits.check_shared_memory(None, f'{folder}/none')
    assert finding.level == FAIL
    # A work folder that is not there yet.
    (finding,) = limits.check_disk(f'{folder}/a/b', size, 3, 'so')
    assert finding.level == FAIL
    assert '3 checkpoints of about 1e+09 GB = 3e+09 GB' in finding.text
    assert levels(limits.check_disk(f'{folder}/a/b', 1, 3, 'so')) == [PASS]


def test_locked_memory(tmp_path):
    assert not list(limits.check_locked_memory(tmp_path / 'none'))
    (tmp_path / 'mlx5_0').mkdir()
    assert levels(limits.check_locked_memory(tmp_path, 65536)) == [WARN]
    assert levels(limits.check_locked_memory(tmp_path, -1)) == [PASS]
