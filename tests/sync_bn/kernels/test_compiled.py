# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The kernels compile for GPUs that are not here, and for what they are."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from mmdet_megdet.sync_bn.kernels import check, fused, triton_kernels

TARGETS = {
    'sm_80': GPUTarget('cuda', 80, 32),
    'sm_90': GPUTarget('cuda', 90, 32),
    'gfx942': GPUTarget('hip', 'gfx942', 64),
}
KERNELS = {
    name
    for name, value in vars(triton_kernels).items()
    if isinstance(value, JITFunction) and name[0] != '_'
}
WRITE = ('normalise', 'input_gradient')


@contextmanager
def recorded(target: str) -> Iterator[dict]:
    """What would be compiled and launched meanwhile, each kernel once."""
    found: dict = {}

    def note(kernel, key, signature, _, constants, options, attributes, __):
        source = ASTSource(kernel, signature, constants, attributes)
        found[kernel.__name__, key] = source, options

    device = SimpleNamespace(
        get_current_target=lambda: TARGETS[target],
        get_current_device=lambda: target,
        get_current_stream=lambda _: None,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, '_active', device)
        patch.setattr(JITFunction, '_do_compile', note)
        yield found


def launch(dtypes: list[torch.dtype], cases: list[check.Case]) -> None:
    """Launch as the self-check does; its numbers are of no account here."""
    for dtype in dtypes:
        for case in cases:
            check.errors(
                fused, torch.device('cpu'), dtype, torch.float32, case
            )


def nvidia(asm: dict) -> dict:
    """Bytes of stack and local memory, widest load and store, of a cubin."""
    tool = Path(triton.__file__).parent / 'backends/nvidia/bin/cuobjdump'
    with tempfile.NamedTemporaryFile(suffix='.cubin') as file:
        Path(file.name).write_bytes(asm['cubin'])
        command = tool, '--dump-resource-usage', file.name
        said = subprocess.check_output(command, text=True)

    def widest(kind: str) -> int:
        pattern = rf'{kind}\.global\S*?(?:\.v(\d))?\.[bfsu](\d+)\s'
        accesses = re.findall(pattern, asm['ptx'])
        return max(int(n or 1) * int(bits) // 8 for n, bits in accesses)

    # What does not fit into registers goes into local memory.
    spills = re.search(r'STACK:(\d+) SHARED:\d+ LOCAL:(\d+)', said).groups()
    return dict(spills=spills, load=widest('ld'), store=widest('st'))


def amd(asm: dict) -> dict:
    """The same of a code object."""
    text = asm['amdgcn']

    def widest(kind: str) -> int:
        words = re.findall(rf'(?:global|buffer)_{kind}_(\w+)', text)
        sizes = dict(x4=16, x3=12, x2=8, short=2, byte=1)
        return max(
            next((n for end, n in sizes.items() if end in word), 4)
            for word in words
        )

    names = (
        'vgpr_spill_count',
        'sgpr_spill_count',
        'private_segment_fixed_size',
    )
    spills = [re.search(rf'\.{name}:\s*(\d+)', text)[1] for name in names]
    return dict(spills=spills, load=widest('load'), store=widest('store'))


@pytest.mark.parametrize(
    ('target', 'dtypes'),
    [
        ('sm_90', 'float16'),
        pytest.param('sm_90', 'float32', marks=pytest.mark.nightly),
        pytest.param('sm_80', 'bfloat16 float32', marks=pytest.mark.nightly),
        pytest.param('gfx942', 'float32 float16', marks=pytest.mark.nightly),
    ],
)
def test_no_spills_no_stack_and_wide_accesses(
    target, dtypes, monkeypatch, tmp_path
):
    monkeypatch.setenv('TRITON_CACHE_DIR', str(tmp_path))
    dtypes = [getattr(torch, name) for name in dtypes.split()]
    with recorded(target) as found:
        launch(dtypes, check.CASES)
    assert {name for name, _ in found} == KERNELS
    over_the_data = 0
    for (name, _), (source, options) in found.items():
        result = triton.compile(
            source, target=TARGETS[target], options=options.__dict__
        )
        row = (nvidia if 'cubin' in result.asm else amd)(result.asm)
        assert set(row['spills']) == {'0'}, (name, row)
        names = source.fn.arg_names
        constants = {names[at]: v for (at,), v in source.constants.items()}
        over_the_data += 'AXIS' in constants
        if constants.get('UNIT') == 16:
            assert row['load'] == 16, (name, row)
            assert row['store'] == 16 or name not in WRITE, (name, row)
    # Four kernels over the data, in both layouts, with and without vectors.
    assert over_the_data == 16 * len(dtypes)


def test_no_size_of_input_needs_another_kernel():
    """Those of the self-check serve them all."""
    dtypes = [torch.float32, torch.float16]
    with recorded('sm_90') as checked:
        launch(dtypes, check.CASES)
    with recorded('sm_90') as needed:
        for height in range(1, 36):
            shape = 1 + height % 2, 16 + height % 3, height, 37
            cases = shape, (*shape[:2], 37 * height)
            launch(dtypes, [check.Case(c, few_programs=False) for c in cases])
    assert len(needed) > 8
    assert needed.keys() <= checked.keys()
