# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The kernels compile for GPUs that are not here, and for what they are."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from mmdet_megdet.sync_bn.kernels import check, fused, triton_kernels

CPU = torch.device('cpu')
TARGETS = {
    'sm_80': GPUTarget('cuda', 80, 32),
    'sm_90': GPUTarget('cuda', 90, 32),
    'gfx942': GPUTarget('hip', 'gfx942', 64),
}
KERNELS = {
    name: value
    for name, value in vars(triton_kernels).items()
    if isinstance(value, JITFunction) and name[0] != '_'
}
WRITE = ('normalise', 'input_gradient')


class Recorder:
    """Stands in for a kernel and keeps what it would be compiled for."""

    def __init__(self, name: str, target: str, found: dict) -> None:
        self.kernel, self.found = KERNELS[name], found
        self.backend = make_backend(TARGETS[target])
        self.bind = create_function_from_signature(
            self.kernel.signature, self.kernel.params, self.backend
        )

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *args, **options):
        # As JITFunction.run does.
        options |= dict(debug=False, instrumentation_mode='')
        bound, specialization, chosen = self.bind(*args, **options)
        key = self.kernel.__name__, str(specialization), str(chosen)
        if key not in self.found:
            self.found[key] = self.kernel._pack_args(
                self.backend, options, bound, specialization, chosen
            )


@contextmanager
def recorded(target: str) -> Iterator[dict]:
    """What is launched meanwhile, each different kernel once."""
    found: dict = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in KERNELS:
            recorder = Recorder(name, target, found)
            patch.setattr(triton_kernels, name, recorder)
        yield found


def launch(dtypes: list[torch.dtype], cases: list[check.Case]) -> None:
    """Launch as the self-check does; its numbers are of no account here."""
    for dtype in dtypes:
        for case in cases:
            check.errors(fused, CPU, dtype, torch.float32, case)


def compiled(target: str, dtypes: list[torch.dtype]) -> Iterator[dict]:
    """A row for each kernel on one target."""
    with recorded(target) as found:
        launch(dtypes, check.CASES)
    assert {name for name, *_ in found} == KERNELS.keys()
    for (name, *_), packed in found.items():
        options, signature, constants, attributes = packed
        source = ASTSource(KERNELS[name], signature, constants, attributes)
        result = triton.compile(
            source, target=TARGETS[target], options=options.__dict__
        )
        names = KERNELS[name].arg_names
        places = {names[place]: v for (place,), v in constants.items()}
        yield dict(
            kernel=name,
            axis=places.get('AXIS'),
            unit=places.get('UNIT'),
            **(nvidia if 'cubin' in result.asm else amd)(result.asm),
        )


def nvidia(asm: dict) -> dict:
    """Registers, bytes of the stack, and loads and stores of a cubin."""
    tool = Path(triton.__file__).parent / 'backends/nvidia/bin/cuobjdump'
    with tempfile.NamedTemporaryFile(suffix='.cubin') as file:
        Path(file.name).write_bytes(asm['cubin'])
        command = tool, '--dump-resource-usage', file.name
        said = subprocess.check_output(command, text=True)
    found = re.search(r'REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)', said)
    registers, stack, local = map(int, found.groups())

    def widest(kind: str) -> int:
        pattern = rf'{kind}\.global\S*?(?:\.v(\d))?\.[bfsu](\d+)\s'
        accesses = re.findall(pattern, asm['ptx'])
        return max(int(n or 1) * int(bits) // 8 for n, bits in accesses)

    # What does not fit into registers goes into local memory.
    return dict(
        registers=registers,
        spills=local,
        stack=stack,
        load=widest('ld'),
        store=widest('st'),
    )


def amd(asm: dict) -> dict:
    """The same of a code object."""
    text = asm['amdgcn']

    def number(name: str) -> int:
        return int(re.search(rf'\.{name}:\s*(\d+)', text)[1])

    def widest(kind: str) -> int:
        words = re.findall(rf'(?:global|buffer)_{kind}_(\w+)', text)
        sizes = dict(x4=16, x3=12, x2=8, short=2, byte=1)
        return max(
            next((n for end, n in sizes.items() if end in word), 4)
            for word in words
        )

    return dict(
        registers=number('vgpr_count'),
        spills=number('vgpr_spill_count') + number('sgpr_spill_count'),
        stack=number('private_segment_fixed_size'),
        load=widest('load'),
        store=widest('store'),
    )


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
    rows = list(compiled(target, dtypes))
    # Four kernels over the data, in both layouts, with and without vectors.
    assert len([r for r in rows if r['axis'] is not None]) == 16 * len(dtypes)
    for row in rows:
        assert row['spills'] == row['stack'] == 0, row
        if row['unit'] == 16:
            assert row['load'] == 16, row
            assert row['store'] == 16 or row['kernel'] not in WRITE, row


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
