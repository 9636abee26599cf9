# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Imports inside the package run downwards only, from room to room."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / 'mmdet_megdet'
# From the top; a room imports from those below it.
LEVELS = (
    {'__init__', 'demo_data'},
    {'cli', 'hooks'},
    {'faults'},
    {'updates', 'noise'},
    {'monitor', 'runtime', 'annotations'},
    {'sync_bn', 'schedulers'},
    {'recipe'},
    {'ranks'},
    {
        'arguments',
        'errors',
        'text',
        'upstream',
        'version',
        'registry',
    },
)
# Importing room and module, for what is no offer to everybody.
PAST_INIT: set[tuple[str, str]] = set()


def imports() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """File, importing room and imported module, from one room to another."""
    for path in sorted(PACKAGE.rglob('*.py')):
        parts = path.relative_to(PACKAGE).with_suffix('').parts
        if '.mim' in parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom):
                continue
            if node.level:
                base = parts[: len(parts) - node.level]
            elif (node.module or '').startswith('mmdet_megdet'):
                base = ()
            else:
                continue
            inner = (node.module or '').removeprefix('mmdet_megdet')
            module = (*base, *filter(None, inner.split('.')))
            for alias in node.names:
                target = module or (alias.name,)
                if target[0] != parts[0]:
                    yield '/'.join(parts), parts[0], target


def level(room: str) -> int:
    (found,) = (i for i, rooms in enumerate(LEVELS) if room in rooms)
    return found


def test_every_room_has_a_level():
    rooms = {p.stem for p in PACKAGE.iterdir() if p.suffix == '.py'}
    rooms |= {p.parent.name for p in PACKAGE.glob('*/__init__.py')}
    assert rooms == set().union(*LEVELS)


def test_imports_run_downwards():
    found = list(imports())
    assert len(found) > 50
    up = [(f, t[0]) for f, room, t in found if level(t[0]) <= level(room)]
    assert up == []


def test_nobody_reaches_past_an_init():
    past = {
        (room, '.'.join(target))
        for _, room, target in imports()
        if len(target) > 1 and target[0] != 'upstream'
    }
    assert past == PAST_INIT


def test_the_layer_and_the_arithmetic_stand_alone():
    """Of MMEngine, `sync_bn` uses the registry alone; `recipe` nothing."""
    allowed = {
        'sync_bn': {'mmengine.registry'},
        'recipe': set(),
        # Inside a function, to look a data set's class up.
        'annotations': {'mmengine.registry', 'mmdet.datasets'},
        'text.py': set(),
        'errors.py': set(),
    }
    for room, names in allowed.items():
        root = PACKAGE / room
        for path in [root] if root.is_file() else root.rglob('*.py'):
            for node in ast.walk(ast.parse(path.read_text())):
                module = ''
                if isinstance(node, ast.ImportFrom) and not node.level:
                    module = node.module
                elif isinstance(node, ast.Import):
                    module = node.names[0].name
                if module.split('.')[0] in ('mmengine', 'mmdet', 'mmcv'):
                    assert module in names, path
