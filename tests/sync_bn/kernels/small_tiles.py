# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A plugin of pytest for runs in Triton's interpreter.

Tiles become so small that the tests' inputs have several chunks of several
tiles, as large ones have on a GPU. And two things about the interpreter
itself: ranks that are threads take turns, since it is made for one; and what
it replaces in Triton's language stays replaced, instead of being replaced
anew in every call, which takes most of its time.
"""

import os
import threading
from types import SimpleNamespace

from triton.runtime import interpreter

from mmdet_megdet.sync_bn.kernels import fused

assert os.environ['TRITON_INTERPRET'] == '1'

fused.ROW_TILES = {16: (1, 4), 1: (1, 4)}
fused.COLUMN_TILE = (4, 4)
fused.PROGRAMS = 12
fused.MOST_TILES = 3
fused.COMBINED |= dict(PARTS=4, CHANNELS=4)
fused.VECTOR |= dict(CHANNELS=2)

_turns = threading.RLock()
_run = interpreter.InterpretedFunction.run
_patch = interpreter._patch_lang
_patched = {}


def _run_alone(self, *args, **kwargs):
    with _turns:
        return _run(self, *args, **kwargs)


def _patch_once(function):
    module = id(function.__globals__)
    if module not in _patched:
        _patched[module] = function.__globals__  # keeps the id taken
        _patch(function)
    return SimpleNamespace(restore=lambda: None)


interpreter.InterpretedFunction.run = _run_alone
interpreter._patch_lang = _patch_once
