# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Links of the documentation lead somewhere; tests that it names exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.markdown import PAGES, anchors, links
from tests.tools.command import ROOT

TESTS = ROOT / 'tests'


def by_page(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize('page', PAGES, ids=by_page)
def test_links_resolve(page):
    broken = []
    for link in links(page):
        if re.match(r'[a-z]+:', link.target):
            continue
        path, _, anchor = link.target.partition('#')
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(f'{link.place}: there is no {link.target}')
        elif not target.is_relative_to(ROOT):
            broken.append(f'{link.place}: {link.target} is not in here')
        elif anchor and anchor not in anchors(target):
            broken.append(f'{link.place}: {path or by_page(page)} has no '
                          f'heading #{anchor}')  # fmt: skip
    assert not broken, '\n'.join(broken)


def test_every_page_is_in_the_index():
    index = ROOT / 'docs' / 'README.md'
    linked = {(index.parent / link.target.partition('#')[0]).resolve()
              for link in links(index)}  # fmt: skip
    pages = {p for p in PAGES if p.parent == index.parent} - {index}
    assert pages <= linked


@pytest.mark.parametrize('page', PAGES, ids=by_page)
def test_tests_that_are_named_exist(page):
    """As `folder/test_x.py::test_y`, or by the function's or file's name."""
    text = page.read_text()
    defined = {
        name
        for path in TESTS.rglob('test_*.py')
        for name in re.findall(r'^def (test_\w+)\(', path.read_text(), re.M)
    }
    missing = []
    for file, name in re.findall(r'`(?:tests/)?(\S+\.py)::(test_\w+)`', text):
        path = TESTS / file
        if not path.is_file() or f'def {name}(' not in path.read_text():
            missing.append(f'{file}::{name}')
    for name in re.findall(r'`(test_\w+)`', text):
        if name not in defined:
            missing.append(name)
    for path in re.findall(r'`(tests/[^:`]*)`', text):
        if not (ROOT / path).exists():
            missing.append(path)
    assert not missing, f'{by_page(page)} names {", ".join(missing)}'
