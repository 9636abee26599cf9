# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Places that tests share."""

from pathlib import Path

import pytest

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
