# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The Python in the documentation, and what `docs/own_config.md` says."""

import inspect
import re
import sys

import mmdet.registry
import mmengine.registry
import pytest
import torch
from mmcv.cnn import build_norm_layer
from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.optim import _ParamScheduler
from mmengine.registry import Registry
from torch import nn

from mmdet_megdet.sync_bn import MegDetSyncBN
from tests.data.small_coco import dicts_in
from tests.docs.markdown import PAGES, blocks
from tests.tools.command import ROOT, run

register_all_modules(init_default_scope=False)
KINDS = {
    name: kind
    for module in (mmengine.registry, mmdet.registry)
    for registry in vars(module).values()
    if isinstance(registry, Registry)
    for name, kind in registry.module_dict.items()
}
PARTS = {
    n for n, k in KINDS.items() if k.__module__.startswith('mmdet_megdet')
}
# Of PyTorch, in no registry.
COMM_HOOKS = {'fp16_compress', 'bf16_compress', 'powerSGD'}
PYTHON = [b for page in PAGES for b in blocks(page) if b.language == 'python']


def construct(part):
    """Build a part as MMEngine does, as far as that goes without a run."""
    given = dict(part)
    kind = KINDS[given.pop('type')]
    if issubclass(kind, _ParamScheduler):
        weight = nn.Parameter(torch.zeros(1))
        kind(torch.optim.SGD([weight], lr=0.04, momentum=0.9), **given)
    elif issubclass(kind, Hook):
        kind(**given)
    elif issubclass(kind, MegDetSyncBN):
        build_norm_layer(part, 8)
    else:
        # A model wrapper or a loop: its own arguments and those passed on.
        known = {
            name
            for ancestor in kind.__mro__
            for name in inspect.signature(ancestor.__init__).parameters
        }
        assert given.keys() <= known


@pytest.mark.parametrize(
    'block',
    # Of assignments alone, and no base to be brought.
    [
        b
        for b in PYTHON
        if not re.search('^(import|from|_base_)', b.text, re.M)
    ],
    ids=lambda b: b.place,
)
def test_parts_take_the_arguments_that_they_are_given(block):
    config = Config.fromstring(block.text, '.py').to_dict()
    parts = [p for p in dicts_in(config) if isinstance(p.get('type'), str)]
    assert {part['type'] for part in parts} <= KINDS.keys() | COMM_HOOKS
    for part in parts:
        if part['type'] in PARTS:
            construct(part)


def test_every_part_is_on_a_page():
    """But for the classes behind `ParamScheduler` and `Momentum`."""
    pages = ''.join(p.read_text() for p in (ROOT / 'docs').glob('*.md'))
    shown = [
        n for n in PARTS if not n.endswith(('ParamScheduler', 'Momentum'))
    ]
    assert len(shown) >= 9
    assert [name for name in shown if f'`{name}' not in pages] == []


def test_the_loop_without_mmengine(tmp_path):
    (block,) = [b for b in PYTHON if b.mark == 'file: loop.py']
    (tmp_path / 'loop.py').write_text(block.text)
    words = '-m torch.distributed.run --standalone --nproc-per-node 2 loop.py'
    result = run(sys.executable, *words.split(), cwd=tmp_path)
    assert result.returncode == 0, result.stdout
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 3)
    )
    plain.load_state_dict(torch.load(tmp_path / 'model.pth'))
    assert plain[1].num_batches_tracked == 3
    assert (plain[1].running_var != 1).all()
