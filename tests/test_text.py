# Copyright (c) mmdet_megdet contributors. All rights reserved.
from mmdet_megdet.text import count, some, these_ranks


def test_lists_and_counts_in_words():
    assert some([1, 'b', None]) == '1, b, None'
    assert some(iter('abcde'), 2, '; ') == 'a; b and 3 more'
    assert [count(n, 'layer') for n in (0, 1)] == ['0 layers', '1 layer']
    assert these_ranks([3]) == 'rank 3'
    assert these_ranks([8, 0, 1, 2, 5, 7]) == 'ranks 0-2, 5, 7, 8'
    many = 'ranks 0, 2, 4, 6, 8, 10, 12, 14 and 24 more'
    assert these_ranks(range(0, 64, 2)) == many
