# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import sys

import pytest

from tests.tools.checks.findings import levels
from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS))  # as for a script there

from checks import machine
from checks.report import FAIL, PASS, WARN


@pytest.mark.parametrize(
    ('hard', 'level'), [(256, FAIL), (2048, WARN), (4096, PASS), (-1, PASS)]
)
def test_open_files(hard, level):
    assert machine.check_open_files(hard).level == level


@pytest.mark.parametrize(('free', 'level'), [(64e6, WARN), (2e9, PASS)])
def test_shared_memory(free, level):
    assert machine.check_shared_memory(int(free)).level == level


def test_a_variable_at_a_price():
    settings = {'TORCH_DISTRIBUTED_DEBUG': 'DETAIL', 'NCCL_DEBUG': 'INFO'}
    finding, *limits = machine.check_surroundings(settings)
    assert finding.text.startswith('TORCH_DISTRIBUTED_DEBUG=DETAIL: every')
    assert levels(machine.check_surroundings({})) == levels(limits)
