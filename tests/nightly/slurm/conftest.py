# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The cluster, started once for all tests that use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.nightly.slurm.cluster import missing, running_cluster


@pytest.fixture(scope='session')
def cluster() -> Iterator[dict[str, str]]:
    """What the cluster's clients need in their environment."""
    lacking = missing()
    if lacking:
        pytest.skip(lacking)
    with running_cluster() as variables:
        yield variables
