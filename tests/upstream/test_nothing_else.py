# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Private names of other libraries are used in ``upstream/`` alone."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from tests.tools.command import ROOT

# What their libraries document in spite of the underscore.
PUBLIC = {
    '_asdict': 'NamedTuple',
    '_exit': 'os',
    '_replace': 'NamedTuple',
    '_BatchNorm': 'to be a subclass of it: see DESIGN of sync_bn/layer.py',
    '_ParamScheduler': 'the base class of all schedulers, in __all__',
}
# Elsewhere for a reason.
ALLOWED = {
    ('tools/setup/install.py', '_base_executable'): 'ahead of any package',
}


def own_names(tree: ast.AST) -> Iterator[str]:
    """What classes of ours have: methods, attributes, fields."""
    classes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    for node in [part for each in classes for part in ast.walk(each)]:
        match node:
            case ast.FunctionDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=value, attr=name, ctx=ast.Store()):
                if is_self(value):
                    yield name


def is_self(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Name) and node.id in ('self', 'cls', 'super')


def used_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Private names that are not looked up in ``self``, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if not is_self(value):
                yield node.lineno, name
            case ast.ImportFrom(module=module, names=names, level=0):
                for name in [*module.split('.'), *(n.name for n in names)]:
                    yield node.lineno, name
            case ast.Import(names=names):
                for name in '.'.join(n.name for n in names).split('.'):
                    yield node.lineno, name
            case ast.Call(
                func=ast.Name(id='getattr' | 'hasattr' | 'setattr'),
                args=[_, ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name


def test_private_names_of_others():
    ours, trees = defaultdict(set), {}
    for folder in ('mmdet_megdet', 'tools'):
        for file in (ROOT / folder).rglob('*.py'):
            if '.mim' not in file.parts:
                trees[file] = ast.parse(file.read_text('utf-8'))
                # Another room's are not ours either.
                ours[file.parent] |= set(own_names(trees[file]))
    used = {
        (str(file.relative_to(ROOT)), name): line
        for file, tree in trees.items()
        if file.parent != ROOT / 'mmdet_megdet' / 'upstream'
        for line, name in used_names(tree)
        if re.match('_[^_]', name)
        and name not in ours[file.parent] | PUBLIC.keys()
    }
    assert trees
    wrong = used.keys() - ALLOWED.keys()
    assert not wrong, [f'{p}:{used[p, n]}: {n}' for p, n in sorted(wrong)]
    assert not ALLOWED.keys() - used.keys(), 'these are no longer needed'
