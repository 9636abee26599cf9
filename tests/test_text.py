# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

from mmdet_megdet.text import count, some, these_ranks


def test_some_and_count():
    assert some([]) == ''
    assert some([1, 'b', None]) == '1, b, None'
    assert some(iter('abcde'), 2, '; ') == 'a; b and 3 more'
    assert [count(n, 'layer') for n in (0, 1)] == ['0 layers', '1 layer']


def test_these_ranks():
    assert these_ranks([3]) == 'rank 3'
    assert these_ranks([8, 0, 1, 2, 5, 7]) == 'ranks 0-2, 5, 7, 8'
    assert these_ranks(range(0, 64, 2)) == (
        'ranks 0, 2, 4, 6, 8, 10, 12, 14 and 24 more'
    )
