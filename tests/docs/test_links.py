# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Links of the documentation lead somewhere; tests that it names exist."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.docs.markdown import PAGES, anchors, links
from tests.tools.command import ROOT

TESTS = ROOT / 'tests'
every_page = pytest.mark.parametrize('page', PAGES, ids=lambda p: p.name)


@every_page
def test_links_resolve(page):
    for link in links(page):
        if re.match(r'[a-z]+:', link):
            continue
        path, _, anchor = link.partition('#')
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_index():
    index = ROOT / 'docs' / 'README.md'
    linked = {
        (index.parent / link.partition('#')[0]).resolve()
        for link in links(index)
    }
    pages = {p for p in PAGES if p.parent == index.parent} - {index}
    assert pages <= linked


@cache
def defined(path):
    return set(re.findall(r'^def (test_\w+)\(', path.read_text(), re.M))


@every_page
def test_tests_that_are_named_exist(page):
    """As `folder/test_x.py::test_y`, or by the function's or file's name."""
    text = page.read_text()
    for file, name in re.findall(r'`(?:tests/)?(\S+\.py)::(test_\w+)`', text):
        assert name in defined(TESTS / file), file
    everywhere = set().union(*map(defined, TESTS.rglob('test_*.py')))
    assert set(re.findall(r'`(test_\w+)`', text)) <= everywhere
    for path in re.findall(r'`(tests/[^:`]*)`', text):
        assert (ROOT / path).exists(), path
