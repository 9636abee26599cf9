# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Marks every test of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With 'nightly'."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.nightly)
