# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Imports inside the package run downwards only, from room to room."""

import ast
from collections.abc import Iterator
from importlib.util import resolve_name

from tests.tools.command import ROOT

PACKAGE = ROOT / 'mmdet_megdet'
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
    {'arguments', 'errors', 'text', 'upstream', 'version', 'registry'},
)
# What rooms that others may use by themselves import of OpenMMLab.
ALONE = {
    'sync_bn': {'mmengine.registry'},
    'recipe': set(),
    # Inside a function, to look a data set's class up.
    'annotations': {'mmengine.registry', 'mmdet.datasets'},
    'text': set(),
    'errors': set(),
}


def imports() -> Iterator[tuple[str, str]]:
    """Yield importing room and imported module, absolute, for all imports."""
    for path in PACKAGE.rglob('*.py'):
        package = '.'.join(path.relative_to(ROOT).parent.parts)
        room = path.relative_to(PACKAGE).with_suffix('').parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((room, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                relative = '.' * node.level + (node.module or '')
                module = resolve_name(relative, package)
                if module == 'mmdet_megdet':
                    for alias in node.names:
                        yield room, f'{module}.{alias.name}'
                else:
                    yield room, module


def levels() -> Iterator[tuple[int, int, str]]:
    """Yield importing and imported level, and the module, between rooms."""
    level = {room: i for i, rooms in enumerate(LEVELS) for room in rooms}
    for room, module in imports():
        library, *inner = module.split('.')
        if library == 'mmdet_megdet' and inner[0] != room:
            yield level[room], level[inner[0]], module


def test_every_room_has_a_level():
    rooms = {p.stem for p in PACKAGE.glob('*.py')}
    rooms |= {p.parent.name for p in PACKAGE.glob('*/__init__.py')}
    assert rooms == set().union(*LEVELS)


def test_imports_run_downwards_and_not_past_an_init():
    found = list(levels())
    assert len(found) > 50
    assert [x for x in found if x[1] <= x[0]] == []
    past = {module for *_, module in found if module.count('.') > 1}
    assert {m for m in past if 'upstream' not in m} == set()


def test_the_layer_and_the_arithmetic_stand_alone():
    for room, module in imports():
        if module.split('.')[0] in ('mmengine', 'mmdet', 'mmcv'):
            assert module in ALONE.get(room, {module}), room
