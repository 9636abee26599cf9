# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The Python in the documentation, and what `docs/own_config.md` says."""

from __future__ import annotations

import ast
import inspect
import sys
from typing import Any

import mmdet.registry
import mmengine.registry
import pytest
import torch
from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.optim import _ParamScheduler
from mmengine.registry import (
    HOOKS,
    LOOPS,
    MODEL_WRAPPERS,
    MODELS,
    PARAM_SCHEDULERS,
)
from torch import nn

from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.docs.markdown import PAGES, Block, blocks
from tests.tools.command import ROOT, run

PYTHON = [b for page in PAGES for b in blocks(page) if b.language == 'python']
PARTS = {
    name: kind
    for registry in (HOOKS, LOOPS, MODEL_WRAPPERS, MODELS, PARAM_SCHEDULERS)
    for name, kind in registry.module_dict.items()
    if kind.__module__.startswith('mmdet_megdet.')
}
# Of PyTorch, in no registry.
COMM_HOOKS = {'fp16_compress', 'bf16_compress', 'powerSGD'}


def is_config(block: Block) -> bool:
    """Whether there are assignments alone, and no base to be brought."""
    lines = ast.parse(block.text).body
    names = [
        target.id
        for line in lines
        if isinstance(line, ast.Assign)
        for target in line.targets
        if isinstance(target, ast.Name)
    ]
    return len(names) == len(lines) and '_base_' not in names


def parts_of(node: Any) -> list[dict]:
    """Dicts that name a type, anywhere in a config."""
    if isinstance(node, dict):
        own = [node] if isinstance(node.get('type'), str) else []
        return own + [p for value in node.values() for p in parts_of(value)]
    if isinstance(node, list | tuple):
        return [part for value in node for part in parts_of(value)]
    return []


def registered() -> set[str]:
    """Names in MMEngine's and mmdet's registries."""
    register_all_modules(init_default_scope=False)
    return {
        name
        for module in (mmengine.registry, mmdet.registry)
        for registry in vars(module).values()
        if isinstance(registry, mmengine.registry.Registry)
        for name in registry.module_dict
    }


def construct(type: str, **given) -> None:
    """Builds a part as MMEngine does, as far as that goes without a run."""
    kind = PARTS[type]
    # mmdet takes that out of a norm_cfg.
    given.pop('requires_grad', None)
    if issubclass(kind, _ParamScheduler):
        weight = nn.Parameter(torch.zeros(1))
        kind(torch.optim.SGD([weight], lr=0.04, momentum=0.9), **given)
    elif issubclass(kind, Hook):
        kind(**given)
    elif issubclass(kind, MegDetSyncBN):
        kind(8, **given)
    else:
        # A model wrapper or a loop: its own arguments and those passed on.
        known = {
            name
            for ancestor in kind.__mro__
            for name in inspect.signature(ancestor.__init__).parameters
        }
        assert given.keys() <= known


@pytest.mark.parametrize(
    'block', filter(is_config, PYTHON), ids=lambda b: b.place
)
def test_parts_take_the_arguments_that_they_are_given(block):
    cfg = Config.fromstring(block.text, '.py')
    parts = parts_of(cfg.to_dict())
    assert {part['type'] for part in parts} <= registered() | COMM_HOOKS
    for part in parts:
        if part['type'] in PARTS:
            construct(**part)


def test_every_part_is_on_a_page():
    """But for the classes behind `ParamScheduler` and `Momentum`."""
    pages = ''.join(p.read_text() for p in (ROOT / 'docs').glob('*.md'))
    silent = ('ParamScheduler', 'Momentum')
    shown = [name for name in PARTS if not name.endswith(silent)]
    assert len(shown) >= 9
    assert [name for name in shown if f'`{name}' not in pages] == []


def test_the_loop_without_mmengine(tmp_path):
    (block,) = [b for b in PYTHON if b.mark.startswith('run: torchrun')]
    script = tmp_path / 'loop.py'
    script.write_text(block.text)
    result = run(
        sys.executable, '-m', 'torch.distributed.run', '--standalone',
        '--nproc-per-node', '2', script, cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout
    state = torch.load(tmp_path / 'model.pth')
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 3)
    )
    plain.load_state_dict(state)
    assert plain[1].num_batches_tracked == 3
    assert (plain[1].running_var != 1).all()
