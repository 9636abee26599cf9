# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest
import torch

from mmdet_megdet.faults.loss import (
    describe_not_finite,
    named_losses,
    not_finite,
)

CPU = torch.device('cpu')


def test_names_are_those_that_are_summed_up():
    """By the same rule as MMEngine's parse_losses."""
    output = dict(
        loss_cls=[torch.tensor(1.0), torch.tensor([2.0, 4.0])],
        loss_box=torch.tensor(5, dtype=torch.float16),
        acc=torch.tensor(float('nan')),
    )
    losses = named_losses(output)
    assert losses == {'loss_cls[0]': 1, 'loss_cls[1]': 3, 'loss_box': 5}
    assert not_finite(losses, CPU).tolist() == [0]
    assert describe_not_finite(losses) == ''
    assert named_losses(torch.ones(3)) == {}
    assert not_finite({}, CPU).tolist() == [0]


@pytest.mark.parametrize(
    ('values', 'text'),
    [
        ((1.0, float('nan')), 'loss_1 is nan'),
        ((float('-inf'), 1.0), 'loss_0 is -inf'),
        # Their sum is NaN.
        ((float('inf'), float('-inf')), 'loss_0 is inf, loss_1 is -inf'),
        ((3e38, 3e38), 'the sum of losses is 6e+38'),
    ],
)
def test_what_is_not_finite(values, text):
    losses = {f'loss_{i}': torch.tensor(v) for i, v in enumerate(values)}
    assert not_finite(losses, CPU).tolist() == [1]
    assert describe_not_finite(losses) == text
