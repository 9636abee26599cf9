# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""`docs/monitor.md` has every finding, option, field and number."""

from __future__ import annotations

import ast
import inspect
import re

from mmdet_megdet.hooks import BNStatsMonitorHook
from mmdet_megdet.monitor import CHECKS, Finding, LayerRecord, Record
from tests.tools.command import ROOT

PAGE = (ROOT / 'docs' / 'monitor.md').read_text()


def table(heading: str) -> list[list[str]]:
    """Cells of the table below a row of headings that begins so."""
    rows = PAGE.partition(f'\n| {heading} |')[2].split('\n\n')[0]
    # A | in code does not part cells.
    return [
        [cell.strip() for cell in row.strip('|').split(' | ')]
        for row in rows.splitlines()[2:]
    ]


def names(cells: list[str]) -> set[str]:
    return {name for cell in cells for name in re.findall('`(.+?)`', cell)}


def test_every_finding():
    told = {
        row[0].split('`')[1]: re.search('error|warning', row[0])[0]
        for row in table('finding')
        if row[0]
    }
    assert told == {check.name: check.level for check in CHECKS}


def test_options_and_their_defaults():
    told = {row[0].strip('`'): row[1].strip('`') for row in table('option')}
    parameters = inspect.signature(BNStatsMonitorHook.__init__).parameters
    assert {name: ast.literal_eval(text) for name, text in told.items()} == {
        name: p.default for name, p in parameters.items() if name != 'self'
    }


def test_every_field():
    told = names([row[0] for row in table('field')])
    assert told == {*Record.__struct_fields__}
    told = names([row[0] for row in table('field of a layer')])
    assert told == {*LayerRecord.__struct_fields__}
    (findings,) = [row for row in table('field') if row[0] == '`findings`']
    assert names(findings[1:]) == {*Finding.__struct_fields__}
