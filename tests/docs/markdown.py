# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Reads the documentation: its fenced blocks, links and headings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.tools.command import ROOT

PAGES = sorted(
    [
        *ROOT.glob('README*.md'),
        *(ROOT / 'docs').rglob('*.md'),
        *(ROOT / 'configs').rglob('*.md'),
    ]
)
SHELLS = ('shell', 'bash', 'console', 'sh')


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        page (Path): The file.
        line (int): Number of its first line of text, from 1.
        language (str): First word of the info string, in lower case.
        mark (str): The HTML comment right above it; empty if there is none.
        text (str): What it holds.
    """

    page: Path
    line: int
    language: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f'{self.page.relative_to(ROOT)}:{self.line}'


class Command(NamedTuple):
    """A command of a shell block.

    Attributes:
        place (str): File and line.
        text (str): The command on one line, without comments.
        mark (str): Comments that belong to it: the block's, those on lines
            above it and the one behind it.
    """

    place: str
    text: str
    mark: str


class Link(NamedTuple):
    """A link, or an image."""

    place: str
    page: Path
    target: str


_FENCE = re.compile(r'^( *)(`{3,}|~{3,}) *(\S*)')
_COMMENT = re.compile(r'^<!-- *(.*?) *-->$')
_LINK = re.compile(r'(?<!\\)\[[^\]]*\]\(<?([^)\s>]+)>?(?: "[^"]*")?\)')
# Not of a footnote, [^1]: ...
_REFERENCE = re.compile(r'^ {0,3}\[(?!\^)[^\]]+\]: +(\S+)')
_HTML = re.compile(r'<(?:a|img)\b[^>]*?\b(?:href|src)="([^"]+)"')


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found, above, opened = [], '', None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None:
            if fence:
                comment = _COMMENT.match(above)
                mark = comment.group(1) if comment else ''
                opened = (number + 1, fence, mark, [])
            elif line.strip():
                above = line.strip()
        elif line.strip() == opened[1].group(2):
            first, fence, mark, text = opened
            language = fence.group(3).lower()
            found.append(Block(page, first, language, mark, '\n'.join(text)))
            opened, above = None, ''
        else:
            opened[3].append(line.removeprefix(opened[1].group(1)))
    assert opened is None, f'{page}: a block is never closed'
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a shell block, in order.

    In a ``console`` block only lines that begin with ``$`` are commands, the
    others what they print.
    """
    found, comments, parts, first = [], [], [], 0
    for number, line in enumerate(block.text.splitlines(), block.line):
        line = line.strip()
        if block.language == 'console' and not parts:
            if not line.startswith('$ '):
                continue
            line = line[2:]
        code, _, comment = (
            ('', '', line[1:])
            if line.startswith('#')
            else line.partition(' #')
        )
        if comment:
            comments.append(comment.strip())
        code = code.strip()
        if not code:
            if not line:
                comments = []
            continue
        first = first if parts else number
        parts.append(code.removesuffix('\\').strip())
        if code.endswith('\\'):
            continue
        mark = ' '.join([block.mark, *comments]).strip()
        place = f'{block.page.relative_to(ROOT)}:{first}'
        found.append(Command(place, ' '.join(parts), mark))
        comments, parts = [], []
    assert not parts, f'{block}: the last line is to be continued'
    return found


def links(page: Path) -> list[Link]:
    """Links and images of a page, outside of blocks and code."""
    found = []
    for number, line in _prose(page):
        line = re.sub(r'(`+).*?\1', '', line)
        targets = _LINK.findall(line) + _HTML.findall(line)
        targets += _REFERENCE.findall(line)
        place = f'{page.relative_to(ROOT)}:{number}'
        found += [Link(place, page, target) for target in targets]
    return found


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    found: set[str] = set()
    for _, line in _prose(page):
        heading = re.match(r'^#{1,6} +(.*?)(?: +#+)?$', line)
        if not heading:
            continue
        # Of a link in a heading, its text.
        text = re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', heading.group(1))
        slug = re.sub(r'[^\w\- ]', '', text.lower()).replace(' ', '-')
        number, name = 0, slug
        while name in found:
            number += 1
            name = f'{slug}-{number}'
        found.add(name)
    return found


def _prose(page: Path) -> list[tuple[int, str]]:
    """Numbered lines that are in no block."""
    inside = {
        number
        for block in blocks(page)
        for number in range(
            block.line - 1, block.line + block.text.count('\n') + 2
        )
    }
    lines = enumerate(page.read_text().splitlines(), 1)
    return [(n, line) for n, line in lines if n not in inside]
