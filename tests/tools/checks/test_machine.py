# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The doctor's lines on packages, limits and variables."""

import re

from checks import machine, packages
from checks.report import FAIL, PASS, WARN

from tests.tools.checks.findings import levels
from tests.tools.command import ROOT


def test_limits():
    found = map(machine.check_open_files, (256, 2048, 4096, -1))
    assert levels(found) == [FAIL, WARN, PASS, PASS]
    found = map(machine.check_shared_memory, (64_000_000, 2_000_000_000))
    assert levels(found) == [WARN, PASS]


def test_a_variable_at_a_price():
    settings = {'TORCH_DISTRIBUTED_DEBUG': 'DETAIL', 'NCCL_DEBUG': 'INFO'}
    finding, *limits = machine.check_surroundings(settings)
    assert finding.text.startswith('TORCH_DISTRIBUTED_DEBUG=DETAIL: every')
    assert levels(machine.check_surroundings({})) == levels(limits)


def test_ranges_are_those_of_the_metadata():
    metadata = (ROOT / 'pyproject.toml').read_text()
    extra = metadata.split('openmmlab = [')[1].split(']')[0]
    assert dict(re.findall(r"'(\w+)([^']*)'", extra)) == packages.RANGES


def test_the_forks_numbers_count_for_the_forks(tmp_path, monkeypatch):
    (tmp_path / 'forkedone.py').write_text("__version__ = '2.3.6'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(packages.RANGES, 'forkedone', '<2.2.0')
    monkeypatch.setitem(packages.FORK_RANGES, 'forkedone', '>=2.3.6')
    for have, level in (({}, FAIL), ({'onedl-forkedone': '2.3.6'}, PASS)):
        monkeypatch.setattr(packages, 'installed', have.get)
        finding = packages.import_package('forkedone')
        assert finding.level == level
        assert '2.3.6' in finding.text


def test_a_package_that_is_not_installed():
    finding = packages.import_package('no_such_package')
    assert (finding.level, finding.text) == (FAIL, 'not installed')
