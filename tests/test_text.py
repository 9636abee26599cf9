# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest

from mmdet_megdet.text import count, some, these_ranks


def test_some():
    assert some([]) == ''
    assert some([1, 'b', None]) == '1, b, None'
    assert some(iter('abcde'), 2, '; ') == 'a; b and 3 more'
    assert [count(n, 'layer') for n in (0, 1)] == ['0 layers', '1 layer']


@pytest.mark.parametrize(
    ('ranks', 'text'),
    [
        ([3], 'rank 3'),
        ([0, 1], 'ranks 0, 1'),
        ([8, 0, 1, 2, 5, 7], 'ranks 0-2, 5, 7, 8'),
        (range(64), 'ranks 0-63'),
        (range(0, 64, 2), 'ranks 0, 2, 4, 6, 8, 10, 12, 14 and 24 more'),
    ],
)
def test_these_ranks(ranks, text):
    assert these_ranks(ranks) == text
