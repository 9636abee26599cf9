# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import re
import sys

import pytest

from tests.tools.command import ROOT, TOOLS

sys.path.insert(0, str(TOOLS))  # as for a script there

from checks import packages
from checks.report import FAIL, PASS


def test_ranges_are_those_of_the_metadata():
    metadata = (ROOT / 'pyproject.toml').read_text()
    extra = metadata.split('openmmlab = [')[1].split(']')[0]
    assert dict(re.findall(r"'(\w+)([^']*)'", extra)) == packages.RANGES


@pytest.mark.parametrize(('fork', 'level'), [(True, PASS), (False, FAIL)])
def test_the_forks_numbers_count_for_the_forks(
    fork, level, tmp_path, monkeypatch
):
    (tmp_path / 'forkedone.py').write_text("__version__ = '2.3.6'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(packages.RANGES, 'forkedone', '<2.2.0')
    monkeypatch.setitem(packages.FORK_RANGES, 'forkedone', '>=2.3.6')
    have = {'onedl-forkedone': '2.3.6'} if fork else {}
    monkeypatch.setattr(packages, 'installed', have.get)
    finding = packages.import_package('forkedone')
    assert finding.level == level
    assert '2.3.6' in finding.text


def test_a_package_that_breaks_as_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / 'brokenone.py').write_text('assert False, "too old"\n')
    monkeypatch.syspath_prepend(tmp_path)
    finding = packages.import_package('brokenone')
    assert finding.text == 'import: AssertionError: too old'
    finding = packages.import_package('no_such_package')
    assert (finding.level, finding.text) == (FAIL, 'not installed')
