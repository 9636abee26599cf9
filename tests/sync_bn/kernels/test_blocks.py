# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""How rows are cut for a fused kernel."""

import pytest

from mmdet_megdet.sync_bn.kernels import blocks


@pytest.mark.parametrize(
    ('length', 'pieces'),
    [(1, 0), (31, 0), (32, 1), (1024, 1), (15200, 16), (60800, 64)],
)
def test_rows_are_equal_and_short(length, pieces):
    assert blocks.equal_pieces(length) == pieces


def test_a_prime_length_is_left_to_the_blocks():
    assert blocks.equal_pieces(1031) == 0
    assert blocks.equal_pieces(2062) == 0
