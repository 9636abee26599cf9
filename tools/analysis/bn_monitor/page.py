# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The report on BatchNorm: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mmdet_megdet.monitor import Finding, Record
from mmdet_megdet.text import count

from .figures import SECTIONS
from .numbers import largest, percent

TEMPLATE = 'page.html.jinja'
# The worst first.
LEVELS = ('error', 'warning', 'info')
# So many layers are named as those that gain most.
TOP = 10


class Seen(NamedTuple):
    """A check's findings, over all records.

    Attributes:
        check (str): Name of the check.
        level (str): 'error', 'warning' or 'info'.
        iterations (list[int]): The iterations that have it.
        now (bool): Whether the last record has it.
        findings (list[Finding]): Those of the last record that has it.
    """

    check: str
    level: str
    iterations: list[int]
    now: bool
    findings: list[Finding]


def seen_findings(records: list[Record]) -> list[Seen]:
    """Return findings by check, those of the last record and worst first."""
    found: dict[tuple[str, str], dict[int, list[Finding]]] = {}
    for record in records:
        for finding in record.findings:
            of_check = found.setdefault((finding.check, finding.level), {})
            of_check.setdefault(record.iter, []).append(finding)
    seen = [
        Seen(
            check,
            level,
            list(by_iteration),
            records[-1].iter in by_iteration,
            by_iteration[max(by_iteration)],
        )
        for (check, level), by_iteration in found.items()
    ]
    return sorted(seen, key=lambda s: (not s.now, LEVELS.index(s.level)))


def verdict(record: Record) -> tuple[str, str]:
    """Sum a record's findings up.

    Returns:
        tuple[str, str]: The worst level, 'fine' without a finding, and a
        sentence.
    """
    levels = [finding.level for finding in record.findings]
    if not levels:
        return 'fine', 'No finding: every check passed.'
    numbers = [
        f'{levels.count(level)} info'
        if level == 'info'
        else count(levels.count(level), level)
        for level in LEVELS
        if level in levels
    ]
    return min(levels, key=LEVELS.index), f'Found: {", ".join(numbers)}.'


def render(
    records: list[Record], figures: Mapping[str, bytes], title: str
) -> str:
    """Write the report.

    Args:
        records (list[Record]): Records.
        figures (Mapping[str, bytes]): The PNG files of :data:`SECTIONS`.
        title (str): Name of the run.

    Returns:
        str: The page, its figures and its style included.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).resolve().parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=percent,
        three_digits=_three_digits,
        milliseconds=_milliseconds,
    )
    return environment.get_template(TEMPLATE).render(
        title=title,
        records=records,
        last=records[-1],
        verdict=verdict(records[-1]),
        seen=seen_findings(records),
        sections=[
            dict(
                name=name,
                title=section.title,
                explanation=section.explain(records),
                how_to_read=section.how_to_read,
                figure=base64.b64encode(figures[name]).decode(),
            )
            for name, section in SECTIONS.items()
        ],
        gains=largest(records, 'between_share', TOP),
        spreads=dict(largest(records, 'var_spread')),
        states={
            layer.name: layer.state
            for record in records
            for layer in record.layers
        },
    )


def _three_digits(value: float | None) -> str:
    return '-' if value is None else f'{value:.3g}'


def _milliseconds(seconds: list[float | None]) -> str:
    known = [second for second in seconds if second is not None]
    return _three_digits(1e3 * float(np.median(known)) if known else None)
