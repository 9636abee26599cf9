# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Links lead somewhere, tests that are named exist, and so do translations."""

import ast
import re

import pytest

from tests.docs.markdown import PAGES, anchors, blocks, commands, links
from tests.tools.command import ROOT

TESTS = ROOT / 'tests'
ENGLISH, CHINESE = ROOT / 'README.md', ROOT / 'README.zh-CN.md'
DEFINED = {
    path: set(re.findall(r'^def (test_\w+)\(', path.read_text(), re.M))
    for path in TESTS.rglob('test_*.py')
}


@pytest.mark.parametrize('page', PAGES, ids=lambda p: p.name)
def test_links_resolve_and_named_tests_exist(page):
    """Tests as `folder/test_x.py::test_y`, or by function or file alone."""
    for link in links(page):
        if re.match('[a-z]+:', link):
            continue
        path, _, anchor = link.partition('#')
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link
    text = page.read_text()
    for file, name in re.findall(r'`(?:tests/)?(\S+\.py)::(test_\w+)`', text):
        assert name in DEFINED[TESTS / file], file
    for name in re.findall(r'`(test_\w+)`', text):
        assert name in set().union(*DEFINED.values())
    for path in re.findall(r'`(tests/[^:`]*)`', text):
        assert (ROOT / path).exists(), path


def test_every_page_is_in_the_index():
    linked = {
        link.partition('#')[0] for link in links(ROOT / 'docs/README.md')
    }
    pages = {page.name for page in PAGES if page.parent.name == 'docs'}
    assert pages - linked == {'README.md'}


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


def names_and_figures(page):
    """What stands in code, and figures such as AP."""
    text = re.sub(r'```.*?```', '', page.read_text(), flags=re.DOTALL)
    found = re.findall(r'`[^`]+`|\d+\.\d+', text)
    return sorted({' '.join(name.split()) for name in found})


@pytest.mark.parametrize('of', [code, targets, names_and_figures])
def test_the_chinese_readme_has_what_the_english_one_has(of):
    assert len(of(ENGLISH)) > 3
    assert of(ENGLISH) == of(CHINESE)
