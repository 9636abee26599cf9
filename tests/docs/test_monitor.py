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


def fields(heading: str) -> tuple[str, ...]:
    cells = ' '.join(row[0] for row in table(heading))
    return tuple(re.findall('`(.+?)`', cells))


def test_findings_options_and_fields():
    told = {
        row[0].split('`')[1]: re.search('error|warning', row[0])[0]
        for row in table('finding')
        if row[0]
    }
    assert told == {check.name: check.level for check in CHECKS}
    told = {
        row[0]: ast.literal_eval(row[1].strip('`')) for row in table('option')
    }
    parameters = inspect.signature(BNStatsMonitorHook).parameters
    assert told == {f'`{n}`': p.default for n, p in parameters.items()}
    assert fields('field') == Record.__struct_fields__
    assert fields('field of a layer') == LayerRecord.__struct_fields__
    (findings,) = [row for row in table('field') if row[0] == '`findings`']
    told = re.findall('`(.+?)`', findings[1])
    assert told == [*Finding.__struct_fields__]
