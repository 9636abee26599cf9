# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The report on BatchNorm: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from . import collectives, drift, share
from .records import LEVELS, Record
from .summary import largest, percent, seen_findings

TEMPLATE = 'page.html.jinja'
# What is shown, in this order: each draws a figure and explains it.
SECTIONS = {
    'between_share': share,
    'drift': drift,
    'collectives': collectives,
}
# So many layers are named as those that gain most.
TOP = 10


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
        percent=percent, figures=figures, milliseconds=milliseconds
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
                title=section.TITLE,
                explanation=section.explain(records),
                how_to_read=section.HOW_TO_READ,
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
        f'{number} {level}{"s" * (number > 1 and level != "info")}'
        for level in LEVELS
        if (number := levels.count(level))
    ]
    return min(levels, key=LEVELS.index), f'Found: {", ".join(numbers)}.'


def figures(value: float | None) -> str:
    """A number to three significant digits."""
    return '-' if value is None else f'{value:.3g}'


def milliseconds(seconds: list[float | None]) -> str:
    """The median of times in milliseconds."""
    known = [second for second in seconds if second is not None]
    return figures(1e3 * float(np.median(known)) if known else None)
