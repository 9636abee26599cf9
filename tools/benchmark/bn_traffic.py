# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Counts what a synchronised layer moves and launches on a GPU, without one.

A pass is one read or write of the input's size. Plain operations are counted
as PyTorch dispatches them, on tensors without memory; Triton's kernels by the
addresses that they read and write in Triton's interpreter;
``nn.SyncBatchNorm``'s by hand, from ``torch/nn/modules/_functions.py`` and
``ATen/native/cuda/Normalization.cuh`` of torch 2.13.0. The limit is what the
mathematics needs: statistics before the output, sums before the gradient.

Example::

    python tools/benchmark/bn_traffic.py
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

# Before triton is imported.
os.environ['TRITON_INTERPRET'] = '1'
if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmdet_megdet.sync_bn.kernels import plain
from mmdet_megdet.sync_bn.moments import Running

SHAPE = (2, 16, 32, 64)
LAYOUTS = {
    'contiguous': torch.contiguous_format,
    'channels last': torch.channels_last,
}
# Of what is dispatched, these move nothing.
FREE = {
    *('view', '_unsafe_view', 'expand', 'unbind', 'split', 'chunk', 'select'),
    *('slice', 'movedim', 'permute', 'transpose', 'unsqueeze', 'squeeze'),
    *('split_with_sizes', 'reshape', 'detach', 'alias', 'as_strided', 't'),
    *('empty', 'empty_like', 'new_empty', 'empty_strided'),
    'new_empty_strided',
}
OVERWRITE = {'copy_', 'fill_', 'zero_'}


class Count(NamedTuple):
    """What one direction costs.

    Attributes:
        reads (float): Of the input's size.
        writes (float): Of the input's size.
        launches (int): Kernels, all-reduces included.
    """

    reads: float
    writes: float
    launches: int


# Reads, writes and launches, forward and backward, with one host
# synchronisation for each of three boolean masks.
NN_SYNC_BN = Count(2, 1, 19), Count(4, 1, 5)
LIMIT = Count(2, 1, 0), Count(4, 1, 0)


class Dispatched(TorchDispatchMode):
    """Adds up what operations of PyTorch would move on a GPU."""

    def __init__(self, unit: int, elements: int) -> None:
        super().__init__()
        self._unit, self._elements = unit, elements
        self.reads = self.writes = self.launches = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split('::')[1]
        if name in FREE:
            return out
        self.launches += 1
        given = dict(
            zip([a.name for a in func._schema.arguments], args, strict=False)
        )
        given |= kwargs or {}
        reads, writes = [], tensors(out)
        for argument in func._schema.arguments:
            values = tensors(given.get(argument.name))
            written = argument.alias_info and argument.alias_info.is_write
            if written:
                writes += values
            if not (written and (argument.is_out or name in OVERWRITE)):
                reads += values
        self.reads += self._passes(reads)
        self.writes += self._passes(writes)
        return out

    def _passes(self, values: list[Tensor]) -> float:
        different = {id(v): v for v in values}.values()
        # What is expanded is read once.
        sizes = [
            v.untyped_storage().nbytes() // v.element_size()
            if 0 in v.stride()
            else v.numel()
            for v in different
        ]
        return sum(
            size * v.element_size() / self._unit
            for size, v in zip(sizes, different, strict=True)
            if size >= self._elements
        )


def tensors(values: object) -> list[Tensor]:
    """All tensors among some values."""
    return [v for v in tree_leaves(values) if isinstance(v, Tensor)]


class Interpreted:
    """Adds up what Triton's kernels read and write of large tensors."""

    def __init__(self, unit: int, elements: int) -> None:
        self._unit, self._elements = unit, elements
        self._ranges: list[tuple[int, int]] = []
        self.reads = self.writes = self.launches = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        from triton.runtime import interpreter

        builder = interpreter.interpreter_builder
        load, store = builder.create_masked_load, builder.create_masked_store
        run = interpreter.InterpretedFunction.run

        def launch(kernel, *args, **kwargs):
            self.launches += 1
            self._ranges = [
                (v.data_ptr(), v.data_ptr() + v.nbytes)
                for v in tensors(args)
                if v.numel() >= self._elements
            ]
            return run(kernel, *args, **kwargs)

        def read(pointers, mask, *args):
            self.reads += self._passes(pointers, mask)
            return load(pointers, mask, *args)

        def write(pointers, value, mask, *args):
            self.writes += self._passes(pointers, mask)
            return store(pointers, value, mask, *args)

        interpreter.InterpretedFunction.run = launch
        builder.create_masked_load, builder.create_masked_store = read, write
        try:
            yield
        finally:
            interpreter.InterpretedFunction.run = run
            del builder.create_masked_load, builder.create_masked_store

    def _passes(self, pointers, mask) -> float:
        places = pointers.data[mask.data]
        if not any(
            begin <= place < end
            for place in places.flat[:1]
            for begin, end in self._ranges
        ):
            return 0
        size = pointers.get_element_ty().primitive_bitwidth // 8
        return places.size * size / self._unit


def step(
    passes: ModuleType, x: Tensor, dy: Tensor
) -> Iterator[tuple[str, object]]:
    """One forward and one backward in turn, as the layer makes them."""
    channels = x.shape[1]
    weight, bias, mean, var = torch.ones(4, channels, device=x.device)
    running = Running(mean, var, torch.zeros((), device=x.device).long(), 0.1)
    yield
    x = passes.prepare(x)
    sums, work = passes.local_sums(x)
    _, saved = passes.normalise(x, work, sums, weight, bias, 1e-5, running)
    yield
    dy = passes.prepare(dy, x)
    dtypes = weight.dtype, bias.dtype
    gradients, *_ = passes.gradient_sums(x, dy, saved, *dtypes)
    dx = passes.begin_input_gradient(x, saved)
    passes.finish_input_gradient(x, dy, dx, saved, gradients)
    yield


def counted(
    passes: ModuleType, dtype: torch.dtype, layout: torch.memory_format
) -> tuple[Count, Count]:
    """Count forward and backward of one implementation."""
    device = 'meta' if passes is plain else 'cpu'
    x, dy = (
        torch.zeros(SHAPE, dtype=dtype, device=device).contiguous(
            memory_format=layout
        )
        for _ in range(2)
    )
    run = step(passes, x, dy)
    next(run)
    counts = []
    for _ in range(2):
        if passes is plain:
            counter = Dispatched(x.nbytes, x.numel() // 4)
            with counter:
                next(run)
        else:
            counter = Interpreted(x.nbytes, x.numel() // 4)
            with counter():
                next(run)
        # And the all-reduce.
        counts.append(
            Count(counter.reads, counter.writes, counter.launches + 1)
        )
    return tuple(counts)


def rows() -> Iterator[tuple[str, str, str, Count, Count]]:
    """Implementation, dtype, layout, and the counts of both directions."""
    from mmdet_megdet.sync_bn.kernels import fused

    for name, passes in (('plain', plain), ('Triton', fused)):
        for dtype in (torch.float32, torch.float16):
            for layout, memory_format in LAYOUTS.items():
                kind = str(dtype).removeprefix('torch.')
                yield (
                    name,
                    kind,
                    layout,
                    *counted(passes, dtype, memory_format),
                )
    yield 'nn.SyncBatchNorm', 'any', 'any', *NN_SYNC_BN
    yield 'limit', 'any', 'any', *LIMIT


def main() -> None:
    """Print the table."""
    print(
        '| kernels | dtype | layout | forward: reads + writes | backward | '
        'passes | launches |\n|---|---|---|---|---|---|---|'
    )
    for name, dtype, layout, *both in rows():
        cells = [f'{c.reads:.3g} + {c.writes:.3g}' for c in both]
        passes = sum(c.reads + c.writes for c in both)
        launches = sum(c.launches for c in both)
        print(
            f'| {name} | {dtype} | {layout} | {cells[0]} | {cells[1]} | '
            f'{passes:.3g} | {launches or "-"} |'
        )


if __name__ == '__main__':
    main()
