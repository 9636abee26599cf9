# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import re
import sys

import pytest

from tests.tools.command import ROOT, TOOLS

sys.path.insert(0, str(TOOLS))  # as for a script there

from checks import versions
from checks.report import FAIL, PASS


def test_ranges_are_those_of_the_metadata():
    asked = dict(
        re.match(r"'(\w+)([^']*)'", line.strip()).groups()
        for line in (ROOT / 'pyproject.toml')
        .read_text()
        .split('openmmlab = [')[1]
        .split(']')[0]
        .strip()
        .splitlines()
    )
    assert asked == versions.RANGES


def test_versions_that_do_not_fit(monkeypatch):
    needs = {
        'torchvision': ['torch==2.0.0', "numpy>=99; extra == 'x'", 'other>9'],
        'mmdet': ['numpy>=1'],
    }
    have = dict(torchvision='0.15', torch='2.13.0+cpu', numpy='2', mmdet='3')
    monkeypatch.setattr(versions, 'installed', have.get)
    monkeypatch.setattr(versions.metadata, 'requires', needs.get)
    (finding,) = versions._check_requirements()
    assert finding.level == FAIL
    assert finding.text == ('0.15 needs torch==2.0.0, installed is 2.13.0+cpu')
    assert versions._in_range('mmcv', '2.2.0', '<2.2.0', '').level == FAIL
    assert versions._in_range('mmcv', '2.1.0', '<2.2.0', '').level == PASS


@pytest.mark.parametrize(('fork', 'level'), [(True, PASS), (False, FAIL)])
def test_the_forks_numbers_count_for_the_forks(
    fork, level, tmp_path, monkeypatch
):
    (tmp_path / 'forkedone.py').write_text("__version__ = '2.3.6'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(versions.RANGES, 'forkedone', '<2.2.0')
    monkeypatch.setitem(versions.FORK_RANGES, 'forkedone', '>=2.3.6')
    have = {'onedl-forkedone': '2.3.6'} if fork else {}
    monkeypatch.setattr(versions, 'installed', have.get)
    (finding,) = versions._imported('forkedone', 'Install another.')
    assert finding.level == level
    assert '2.3.6' in finding.text


def test_a_package_that_breaks_as_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / 'brokenone.py').write_text('assert False, "too old"\n')
    monkeypatch.syspath_prepend(tmp_path)
    (finding,) = versions._imported('brokenone', 'Mend it.')
    assert finding.text == 'import: AssertionError: too old'
    (finding,) = versions._imported('no_such_package', 'Install it.')
    assert (finding.level, finding.text) == (FAIL, 'not installed')
