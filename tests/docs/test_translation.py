# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The Chinese README has what the English one has."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.markdown import blocks, commands, links
from tests.tools.command import ROOT

ENGLISH, CHINESE = ROOT / 'README.md', ROOT / 'README.zh-CN.md'


def code(page):
    """What blocks do: their comments are translated."""
    return [
        ast.dump(ast.parse(block.text))
        if block.language == 'python'
        else [command.text for command in commands(block)]
        for block in blocks(page)
    ]


def targets(page):
    return sorted(set(links(page)) - {ENGLISH.name, CHINESE.name})


def prose(page):
    return re.sub(r'```.*?```', '', page.read_text(), flags=re.DOTALL)


def structure(page):
    """Marks of headings, rows and items."""
    return re.findall(r'^(?:#+ |\| `?|- )', prose(page), re.M)


def names_and_figures(page):
    """What stands in code, and figures such as AP."""
    found = re.findall(r'`[^`]+`|\d+\.\d+', prose(page))
    return sorted({' '.join(text.split()) for text in found})


@pytest.mark.parametrize('of', [code, targets, structure, names_and_figures])
def test_same(of):
    assert len(of(ENGLISH)) > 3
    assert of(ENGLISH) == of(CHINESE)
