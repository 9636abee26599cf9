# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Compiles every kernel that the layer launches for GPUs that are not here.

Run as a program, which prints a JSON list with a row for each kernel, since
Triton decides as it is imported whether it compiles or interprets.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from mmdet_megdet.sync_bn.kernels import check, fused, triton_kernels
from mmdet_megdet.sync_bn.moments import Running

CPU = torch.device('cpu')
TARGETS = {
    'sm_80': GPUTarget('cuda', 80, 32),
    'sm_90': GPUTarget('cuda', 90, 32),
    'gfx942': GPUTarget('hip', 'gfx942', 64),
}


class Recorder:
    """Stands in for a kernel and keeps what it would be compiled for."""

    def __init__(self, kernel: JITFunction, target: str, found: dict) -> None:
        self.kernel, self.found = kernel, found
        self.backend = make_backend(TARGETS[target])
        self.bind = create_function_from_signature(
            kernel.signature, kernel.params, self.backend
        )

    def __getitem__(self, grid):
        def launch(*args, **options):
            # As JITFunction.run does.
            options |= dict(debug=False, instrumentation_mode='')
            bound, specialization, chosen = self.bind(*args, **options)
            key = self.kernel.__name__, str(specialization), str(chosen)
            if key not in self.found:
                self.found[key] = self.kernel._pack_args(
                    self.backend, options, bound, specialization, chosen
                )

        return launch


def kernels() -> dict[str, JITFunction]:
    """All that are launched, by name."""
    return {
        name: value
        for name, value in vars(triton_kernels).items()
        if isinstance(value, JITFunction) and name[0] != '_'
    }


@contextmanager
def recorded(target: str) -> Iterator[dict]:
    """What is launched meanwhile, each different kernel once."""
    found: dict = {}
    originals = kernels()
    for name, kernel in originals.items():
        setattr(triton_kernels, name, Recorder(kernel, target, found))
    yield found
    vars(triton_kernels).update(originals)


def self_check(dtypes: list[torch.dtype]) -> None:
    """Launch what the self-check does; its numbers are of no account here."""
    for dtype in dtypes:
        for case in check.CASES:
            check.errors(fused, CPU, dtype, torch.float32, case)


def many_shapes() -> int:
    """Kinds of kernels that inputs of many sizes need beyond the check's."""
    with recorded('sm_90') as checked:
        self_check([torch.float32, torch.float16])
    with recorded('sm_90') as needed:
        for height in range(1, 36):
            for layout in (torch.contiguous_format, torch.channels_last):
                for dtype in (torch.float32, torch.float16):
                    shape = (1 + height % 2, 16 + height % 3, height, 37)
                    x = torch.zeros(shape, dtype=dtype)
                    run_step(x.contiguous(memory_format=layout))
    assert len(needed) > 8
    return len(needed.keys() - checked.keys())


def run_step(x: torch.Tensor) -> None:
    channels = x.shape[1]
    weight, bias, mean, var = torch.ones(4, channels)
    running = Running(mean, var, torch.tensor(0), 0.1)
    sums, work = fused.local_sums(x)
    _, saved = fused.normalise(x, work, sums, weight, bias, 1e-5, running)
    gradients, *_ = fused.gradient_sums(x, x, saved, weight.dtype, bias.dtype)
    dx = fused.begin_input_gradient(x, saved)
    fused.finish_input_gradient(x, x, dx, saved, gradients)


def compiled(target: str, dtypes: list[torch.dtype]) -> Iterator[dict]:
    """A row for each kernel on one target."""
    with recorded(target) as found:
        self_check(dtypes)
    originals = kernels()
    assert {name for name, *_ in found} == originals.keys()
    for (name, *_), (
        options,
        signature,
        constants,
        attributes,
    ) in found.items():
        kernel = originals[name]
        source = ASTSource(kernel, signature, constants, attributes)
        result = triton.compile(
            source, target=TARGETS[target], options=options.__dict__
        )
        places = {
            kernel.arg_names[place]: value
            for (place,), value in constants.items()
        }
        pointer = signature.get('x', signature.get('low', '*fp64'))
        yield dict(
            target=target,
            kernel=name,
            dtype=pointer.strip('*'),
            axis=places.get('AXIS'),
            unit=places.get('UNIT'),
            **(nvidia if 'cubin' in result.asm else amd)(result.asm),
        )


def nvidia(asm: dict) -> dict:
    """Registers, bytes of the stack, and loads and stores of a cubin."""
    tool = Path(triton.__file__).parent / 'backends/nvidia/bin/cuobjdump'
    with tempfile.NamedTemporaryFile(suffix='.cubin') as file:
        file.write(asm['cubin'])
        file.flush()
        said = subprocess.run(
            [tool, '--dump-resource-usage', file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    found = re.search(r'REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)', said)
    registers, stack, local = map(int, found.groups())
    return dict(
        registers=registers,
        # What does not fit into registers goes into local memory.
        spills=local,
        stack=stack,
        load=widest(r'ld\.global\S*?(?:\.v(\d))?\.[bfsu](\d+)\s', asm['ptx']),
        store=widest(r'st\.global\S*?(?:\.v(\d))?\.[bfsu](\d+)\s', asm['ptx']),
    )


def widest(pattern: str, text: str) -> int:
    """Bytes of the widest access that a pattern finds: elements and bits."""
    found = re.findall(pattern, text)
    return max(int(n or 1) * int(bits) // 8 for n, bits in found)


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


if __name__ == '__main__':
    target, *names = sys.argv[1:]
    if target == 'many-shapes':
        print(many_shapes())
    else:
        dtypes = [getattr(torch, name) for name in names]
        print(json.dumps(list(compiled(target, dtypes))))
