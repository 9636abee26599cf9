# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Reads the documentation: blocks, commands, tables, links and anchors."""

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
    page
    for pattern in ('*.md', 'docs/**/*.md', 'configs/**/*.md')
    for page in ROOT.glob(pattern)
)


class Block(NamedTuple):
    """A fenced block, or a command of one, and the comments that go with it.

    A block has the HTML comment right above it; a command has its block's, the
    one behind it, and those on the lines above it up to an empty line.
    """

    place: str
    language: str
    mark: str
    text: str


@cache
def _tokens(page: Path) -> list[Token]:
    parser = MarkdownIt('commonmark').enable('table')
    return parser.parse(page.read_text())


def blocks(page: Path) -> Iterator[Block]:
    for above, token in pairwise(_tokens(page)):
        if token.type == 'fence':
            comment = re.fullmatch(r'<!-- *(.*?) *-->\s*', above.content)
            mark = comment[1] if comment else ''
            place = f'{page.relative_to(ROOT)}:{token.map[0] + 1}'
            yield Block(place, token.info, mark, token.content)


def commands(block: Block) -> Iterator[Block]:
    mark = block.mark
    for line in block.text.replace('\\\n', ' ').splitlines():
        code, _, comment = f' {line}'.partition(' #')
        mark += f' {comment.strip()}'
        if code.split():
            yield block._replace(text=' '.join(code.split()), mark=mark)
        if code.split() or not line.strip():
            mark = block.mark


def table(page: str, heading: str) -> list[list[str]]:
    """Return the rows of cells of a page's tables with this first heading."""
    found: list[list[str]] = []
    rows: list[list[str]] = []
    for opened, token in pairwise(_tokens(ROOT / page)):
        if token.type == 'table_open':
            rows = []
        elif token.type == 'tr_open':
            rows.append([])
        elif opened.type in ('th_open', 'td_open'):
            rows[-1].append(token.content)
        elif token.type == 'table_close' and rows[0][0] == heading:
            found += rows[1:]
    assert found, f'{page}: no table with {heading!r}'
    return found


def links(page: Path) -> Iterator[str]:
    """Yield the targets of links and images."""
    for token in _tokens(page):
        for part in [token, *(token.children or ())]:
            yield from (
                v for k, v in part.attrs.items() if k in ('href', 'src')
            )
            if part.type.startswith('html'):
                yield from re.findall(r'<\w+\b[^>]* src="(.+?)"', part.content)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives a page's headings."""
    found: set[str] = set()
    for opened, token in pairwise(_tokens(page)):
        if opened.type == 'heading_open':
            text = ''.join(part.content for part in token.children)
            slug = re.sub(r'[^\w\- ]', '', text.lower()).replace(' ', '-')
            # A second one of the same name would be slug-1.
            assert slug not in found, f'{page}: two headings {text!r}'
            found.add(slug)
    return found
