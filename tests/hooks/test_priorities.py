# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The order of hooks that the package's page tells."""

import re

from mmengine.hooks import Hook
from mmengine.runner.priority import get_priority

from mmdet_megdet import hooks


def test_the_page_has_the_hooks_in_their_order():
    rows = re.findall(r'- (\d+), :class:`(\w+)`', hooks.__doc__)
    told = {name: int(number) for number, name in rows}
    assert list(told.values()) == sorted(told.values())
    ours = [getattr(hooks, name) for name in hooks.__all__]
    assert told == {
        kind.__name__: get_priority(kind.priority)
        for kind in ours
        if issubclass(kind, Hook)
    }
