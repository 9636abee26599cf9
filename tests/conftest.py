# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Settings that tests share."""

import gc
import os
import time
from collections.abc import Iterator

import pytest
from hypothesis import settings
from mmengine.registry import DefaultScope
from mmengine.visualization import Visualizer

# No deadlines, since machines are loaded. In CI the same examples every time:
# a failure there is that of the change.
settings.register_profile(
    'project', deadline=None, derandomize='CI' in os.environ
)
settings.load_profile('project')

# What an earlier test has let go, a process group say, is collected where its
# threads are: in a forked process its end would wait for them for ever.
os.register_at_fork(before=gc.freeze, after_in_parent=gc.unfreeze)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files that have slow tests: no worker ends long after all."""
    slow = {item.path for item in items if item.get_closest_marker('slow')}
    items.sort(key=lambda item: item.path not in slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin no nightly test after ``NIGHTLY_UNTIL``, in seconds as by date."""
    end = os.environ.get('NIGHTLY_UNTIL')
    if end and item.get_closest_marker('nightly') and time.time() > int(end):
        pytest.skip('no time left: NIGHTLY_UNTIL has passed')


@pytest.fixture(scope='module', autouse=True)
def nothing_global_of_other_modules() -> Iterator[None]:
    """Forget what a Runner leaves behind, by name: scope and visualizers.

    A scope decides where types are looked up; a visualizer writes into the
    folder of its first Runner.
    """
    yield
    kinds = [DefaultScope, Visualizer]
    for kind in kinds:
        kind._instance_dict.clear()
        kinds += kind.__subclasses__()
