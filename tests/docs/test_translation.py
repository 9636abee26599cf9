# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The Chinese README has what the English one has."""

from __future__ import annotations

import ast
import re

from tests.docs.markdown import Block, blocks, commands, links
from tests.tools.command import ROOT

ENGLISH, CHINESE = ROOT / 'README.md', ROOT / 'README.zh-CN.md'


def without_comments(block: Block) -> object:
    """What a block does: its comments are translated."""
    if block.language == 'python':
        return ast.dump(ast.parse(block.text))
    assert block.language == 'shell', f'{block}: how to compare it?'
    return [command.text for command in commands(block)]


def test_same_code():
    ours, theirs = (
        [(b.language, without_comments(b)) for b in blocks(page)]
        for page in (ENGLISH, CHINESE)
    )
    assert len(ours) > 3
    assert ours == theirs


def prose(page) -> str:
    return re.sub(r'```.*?```', '', page.read_text(), flags=re.DOTALL)


def test_same_headings_and_rows():
    for mark in (r'^#+ ', r'^\| `?', r'^- '):
        ours, theirs = (
            re.findall(mark, prose(page), re.M) for page in (ENGLISH, CHINESE)
        )
        assert ours == theirs, mark


def test_same_links():
    ours, theirs = (
        sorted(link.target for link in links(page))
        for page in (ENGLISH, CHINESE)
    )
    assert CHINESE.name in ours
    assert ENGLISH.name in theirs
    ours.remove(CHINESE.name)
    theirs.remove(ENGLISH.name)
    assert ours == theirs


def test_same_names_and_numbers():
    """What stands in code, and figures such as AP."""
    for pattern in (r'`[^`]+`', r'\d+\.\d+'):
        ours, theirs = (
            sorted(
                {' '.join(x.split()) for x in re.findall(pattern, prose(page))}
            )
            for page in (ENGLISH, CHINESE)
        )
        assert ours
        assert ours == theirs
