# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Places and settings that tests share."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No deadlines, since machines are loaded. In CI the same examples every time:
# a failure there is that of the change.
settings.register_profile(
    'project', deadline=None, derandomize='CI' in os.environ
)
settings.load_profile('project')

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture
def shared_data() -> Path:
    """Public data sets that lie beside the repository, not in it."""
    path = ROOT.parent / 'shared' / 'data'
    if not path.is_dir():
        pytest.skip('needs ../shared/data beside the repository')
    return path
