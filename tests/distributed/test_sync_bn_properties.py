# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Whatever the shapes, shares and groups: float64 BatchNorm, within bounds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdet_megdet.sync_bn import kernels
from mmdet_megdet.sync_bn.kernels import blocks
from tests.distributed.parity import Case, channels_last, parity
from tests.distributed.threads import run_threads


def assert_parity(world_size, case):
    for errors in run_threads(parity, world_size, case):
        assert all(error <= 1 for error in errors.values()), errors


LAYOUTS = {
    'contiguous': None,
    'channels_last': channels_last,
    'transposed': lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    'strided': lambda x: x.repeat_interleave(2, 1)[:, ::2],
}


@st.composite
def cases(draw):
    ranks = draw(st.sampled_from([2, 3, 4]))
    world_size = ranks * draw(st.sampled_from([1, 2]))
    shares = st.lists(
        st.integers(0, 4), min_size=world_size, max_size=world_size
    )
    spatial = draw(
        st.sampled_from([(), (1,), (7,), (1, 1), (4, 5), (3, 7), (2, 3, 2)])
    )
    layout = draw(st.sampled_from(sorted(LAYOUTS)))
    if len(spatial) != 2:
        layout = 'contiguous'
    dtype = draw(
        st.sampled_from([torch.float32, torch.float16, torch.bfloat16])
    )
    # Half formats have no digits left for a spread of 1 about 1000.
    means = [0.0, -3.0, 1000.0] if dtype == torch.float32 else [0.0, -3.0]
    return world_size, Case(
        shares=tuple(draw(shares.filter(any))),
        spatial=spatial,
        mean=draw(st.sampled_from(means)),
        dtype=dtype,
        layer=dict(
            eps=draw(st.sampled_from([1e-5, 1e-3])),
            momentum=draw(st.sampled_from([0.1, 1.0, None])),
            affine=draw(st.booleans()),
            track_running_stats=draw(st.booleans()),
        ),
        channels=draw(st.sampled_from([1, 2, 3, 5, 13])),
        layout=LAYOUTS[layout],
        constant=draw(st.booleans()),
        ranks_per_group=ranks,
    )


@settings(max_examples=20 if kernels.interpreted() else 100)
@given(cases(), st.sampled_from([1, 64, 1 << 20]))
def test_parity(drawn, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, 'CPU_BLOCK_ELEMENTS', block)
        assert_parity(*drawn)


@pytest.mark.parametrize('ranks_per_group', [None, 8])
def test_many_ranks(ranks_per_group):
    shares = tuple(rank % 3 for rank in range(128))
    case = Case(shares, (3, 3), 100.0, ranks_per_group=ranks_per_group)
    assert_parity(128, case)
