# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest

from mmdet_megdet.text import count, some, these_ranks


@pytest.mark.parametrize(
    ('names', 'text'),
    [
        ([], ''),
        ([1, 'b', None], '1, b, None'),
        (iter('abcd'), 'a, b, c and 1 more'),
    ],
)
def test_some(names, text):
    assert some(names) == text


def test_some_by_other_words():
    assert some('abcde', 2, '; ') == 'a; b and 3 more'


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


def test_count():
    assert [count(n, 'layer') for n in (0, 1, 2)] == [
        '0 layers',
        '1 layer',
        '2 layers',
    ]
