# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Reads the documentation: its fenced blocks, commands, links and anchors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.tools.command import ROOT

PAGES = sorted(
    [
        *ROOT.glob('README*.md'),
        *(ROOT / 'docs').rglob('*.md'),
        *(ROOT / 'configs').rglob('*.md'),
    ]
)
_COMMENT = re.compile(r'<!-- *(.*?) *-->\s*')
_HTML = re.compile(r'<(?:a|img)\b[^>]*?\b(?:href|src)="([^"]+)"')


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        place (str): File and line.
        language (str): First word of the info string.
        mark (str): The HTML comment right above it; empty if there is none.
        text (str): What it holds.
    """

    place: str
    language: str
    mark: str
    text: str


class Command(NamedTuple):
    """A command of a shell block.

    Attributes:
        place (str): File and line of the block.
        text (str): The command on one line, without comments.
        mark (str): Comments that belong to it: the block's, those on lines
            above it and the one behind it.
    """

    place: str
    text: str
    mark: str


@cache
def _tokens(page: Path) -> list[Token]:
    parser = MarkdownIt('commonmark').enable('table')
    return parser.parse(page.read_text())


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = []
    for above, token in pairwise(_tokens(page)):
        if token.type == 'fence':
            comment = _COMMENT.fullmatch(above.content)
            mark = comment.group(1) if comment else ''
            place = f'{page.relative_to(ROOT)}:{token.map[0] + 1}'
            found.append(Block(place, token.info, mark, token.content))
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a shell block, in order."""
    found, comments = [], []
    for line in block.text.replace('\\\n', ' ').splitlines():
        if not line.strip():
            comments = []
        code, _, comment = f' {line}'.partition(' #')
        if comment:
            comments.append(comment.strip())
        text = ' '.join(code.split())
        if text:
            mark = ' '.join([block.mark, *comments])
            found.append(Command(block.place, text, mark))
            comments = []
    return found


def links(page: Path) -> Iterator[str]:
    """Targets of the links and images of a page."""
    for token in _tokens(page):
        for part in [token, *(token.children or ())]:
            yield from (
                v for k, v in part.attrs.items() if k in ('href', 'src')
            )
            if part.type.startswith('html'):
                yield from _HTML.findall(part.content)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    found: set[str] = set()
    for opened, token in pairwise(_tokens(page)):
        if opened.type != 'heading_open':
            continue
        text = ''.join(part.content for part in token.children)
        slug = re.sub(r'[^\w\- ]', '', text.lower()).replace(' ', '-')
        number, name = 0, slug
        while name in found:
            number += 1
            name = f'{slug}-{number}'
        found.add(name)
    return found
