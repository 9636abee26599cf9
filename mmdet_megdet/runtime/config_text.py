# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The config in a checkpoint, read as data: nothing of it is executed."""

from __future__ import annotations

import ast
from typing import Any


def read_config(text: str) -> dict[str, Any] | None:
    """Read the assignments of a config that MMEngine wrote.

    Numbers, strings, lists, tuples, and dicts in either spelling become what
    they are. Any other expression is its own text: a call, an import, a
    substitution.

    Args:
        text (str): As ``Config.pretty_text`` gives it.

    Returns:
        dict: Values by names; None for what is no Python.
    """
    try:
        return {
            statement.targets[0].id: _value(statement.value)
            for statement in ast.parse(text).body
            if isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.List() | ast.Tuple():
            kind = list if isinstance(node, ast.List) else tuple
            return kind(_value(item) for item in node.elts)
        case ast.Call(func=ast.Name(id='dict'), args=[]) if all(
            keyword.arg for keyword in node.keywords
        ):
            return {k.arg: _value(k.value) for k in node.keywords}
        case ast.Dict() if all(isinstance(k, ast.Constant) for k in node.keys):
            pairs = zip(node.keys, node.values, strict=True)
            return {key.value: _value(value) for key, value in pairs}
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return ast.unparse(node)
