# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What several files of tests compare with."""

from __future__ import annotations

import pytest

from tests.distributed.faults import Run


@pytest.fixture(scope='session')
def undisturbed(tmp_path_factory):
    """The folder of a run to which nothing happened."""
    work_dir = tmp_path_factory.mktemp('undisturbed')
    outcome = Run(work_dir).finish()
    assert outcome.statuses == [0, 0], outcome.logs
    return work_dir
