# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Every command of the documentation is run by a test, or says what it needs.

The page says what it needs in a comment above the block (``<!-- needs GPUs
-->``), or in the shell's, above or behind the command; and, if it is none of
the tools, who runs it (``<!-- run by tests/docs -->``).
"""

import argparse
import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import PAGES, blocks, commands
from tests.tools.command import ROOT

TOOL = re.compile(r'(?:[A-Z_]+=\S+ )*(?:python )?(?:\$mim/)?(tools/\S+)( .*)?')
COMMANDS = [
    command
    for page in PAGES
    for block in blocks(page)
    if block.language in ('shell', 'bash', 'console', 'sh')
    for command in commands(block)
]
MAKEFILE = (ROOT / 'Makefile').read_text()
TESTS = ''.join(
    path.read_text()
    for path in (ROOT / 'tests').rglob('*.py')
    if path != Path(__file__)
)


def is_run(text: str) -> bool:
    """Whether it is of a kind that a test runs."""
    if tool := TOOL.fullmatch(text):
        name = Path(tool[1]).stem
        return re.search(rf'\b{name}\b', TESTS) is not None
    if text.startswith('make '):
        return f'\n{text.split()[1]}:' in MAKEFILE
    if text.startswith('python -m pytest '):
        return (ROOT / text.split()[-1]).exists()
    return text == 'source .venv/bin/activate'


@pytest.mark.parametrize('command', COMMANDS, ids=lambda c: c.text)
def test_every_command_is_run_or_says_what_it_needs(command):
    named = re.findall(r'run by (\S+)', command.mark)
    assert all((ROOT / path).exists() for path in named)
    assert named or 'needs ' in command.mark or is_run(command.text), (
        f'{command.place}: no test runs `{command.text}`. Write one, or say '
        'in the page what it needs, as <!-- needs GPUs --> above the block '
        'or # needs GPUs behind it.'
    )


@pytest.mark.parametrize(
    'text', sorted({c.text for c in COMMANDS if TOOL.fullmatch(c.text)})
)
def test_tools_take_these_options(text, monkeypatch):
    """And plan.py finds that what they say can run."""
    path, words = TOOL.fullmatch(text).groups(default='')
    tool = ROOT / path
    assert tool.exists()
    if tool.suffix == '.sh':
        for option in re.findall(r' (--\S+)', words):
            assert f"'{option}'" in (ROOT / 'tools/train.py').read_text()
    elif words:

        def parse(parser, *given, real=argparse.ArgumentParser.parse_args):
            parsed = real(parser, *given)
            if tool.name != 'plan.py':
                raise SystemExit(0)
            return parsed

        monkeypatch.setattr(argparse.ArgumentParser, 'parse_args', parse)
        monkeypatch.setattr(sys, 'argv', [path, *words.split()])
        monkeypatch.syspath_prepend(tool.parent)
        with pytest.raises(SystemExit) as caught:
            runpy.run_path(str(tool), run_name='__main__')
        assert caught.value.code == 0
