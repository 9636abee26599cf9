# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Counts what a synchronised layer moves and launches on a GPU, without one.

A pass is one read or write of the input's size. Plain operations are counted
as PyTorch dispatches them, on tensors without memory; Triton's kernels by the
addresses that they read and write in Triton's interpreter;
``nn.SyncBatchNorm``'s by hand, from ``torch/nn/modules/_functions.py`` and
``ATen/native/cuda/Normalization.cuh`` of torch 2.13.0. The limit is what the
mathematics needs: statistics before the output, sums before the gradient.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

# Before triton is imported.
os.environ['TRITON_INTERPRET'] = '1'

import torch
from measuring import markdown
from torch import Tensor

from mmdet_megdet.sync_bn.kernels import plain
from mmdet_megdet.sync_bn.moments import Running
from mmdet_megdet.upstream.torch_names import recorded_operations

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
    """Passes of one direction, and launches with the all-reduce."""

    reads: float
    writes: float
    launches: int


# Reads, writes and launches, forward and backward, with one host
# synchronisation for each of three boolean masks.
NN_SYNC_BN = Count(2, 1, 19), Count(4, 1, 5)
LIMIT = Count(2, 1, 0), Count(4, 1, 0)


def dispatched(run: Callable[[], object], x: Tensor) -> Count:
    """Count what operations of PyTorch would move of large tensors."""
    with recorded_operations() as operations:
        run()
    reads: list[Tensor] = []
    writes: list[Tensor] = []
    launches = 1  # the all-reduce
    for name, given, made in operations:
        if name in FREE:
            continue
        launches += 1
        overwritten = made if name in OVERWRITE else []
        read = {id(v): v for v in given}
        reads += [v for k, v in read.items() if k not in map(id, overwritten)]
        writes += {id(v): v for v in made}.values()
    return Count(passes(reads, x), passes(writes, x), launches)


def passes(values: list[Tensor], x: Tensor) -> float:
    """Return the bytes of large tensors by those of the input."""
    # What is expanded is read once.
    sizes = [
        v.untyped_storage().nbytes() if 0 in v.stride() else v.nbytes
        for v in values
    ]
    return sum(
        size / x.nbytes
        for size, v in zip(sizes, values, strict=True)
        if size // v.element_size() >= x.numel() // 4
    )


def interpreted(run: Callable[[], object], x: Tensor) -> Count:
    """Count what Triton's kernels read and write of large tensors."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    kind = interpreter.InterpretedFunction
    start = kind.run
    large: list[range] = []
    bytes_of, launches = Counter(), 0

    def launch(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal launches
        launches += 1
        large[:] = [
            range(v.data_ptr(), v.data_ptr() + v.nbytes)
            for v in args
            if isinstance(v, Tensor) and v.numel() >= x.numel() // 4
        ]
        return start(kernel, *args, **kwargs)

    def counting(way: str, access: Callable, mask_at: int) -> Callable:
        def call(pointers: Any, *args: Any) -> Any:
            places = pointers.data[args[mask_at].data]
            if places.size and any(int(places.flat[0]) in r for r in large):
                bits = pointers.get_element_ty().primitive_bitwidth
                bytes_of[way] += places.size * bits // 8
            return access(pointers, *args)

        return call

    read = counting('reads', builder.create_masked_load, 0)
    write = counting('writes', builder.create_masked_store, 1)
    with (
        patch.object(kind, 'run', launch),
        patch.object(builder, 'create_masked_load', read),
        patch.object(builder, 'create_masked_store', write),
    ):
        run()
    reads, writes = (bytes_of[w] / x.nbytes for w in ('reads', 'writes'))
    return Count(reads, writes, launches + 1)


def steps(kernels: ModuleType, x: Tensor, dy: Tensor) -> Iterator[None]:
    """Make one forward and one backward in turn, as the layer does."""
    channels = x.shape[1]
    weight, bias, mean, var = torch.ones(4, channels, device=x.device)
    running = Running(mean, var, torch.zeros((), device=x.device).long(), 0.1)
    yield
    x = kernels.prepare(x)
    sums, work = kernels.local_sums(x)
    _, saved = kernels.normalise(x, work, sums, weight, bias, 1e-5, running)
    yield
    dy = kernels.prepare(dy, x)
    dtypes = weight.dtype, bias.dtype
    gradients, *_ = kernels.gradient_sums(x, dy, saved, *dtypes)
    dx = kernels.begin_input_gradient(x, saved)
    kernels.finish_input_gradient(x, dy, dx, saved, gradients)
    yield


def counted(
    kernels: ModuleType, dtype: torch.dtype, layout: torch.memory_format
) -> tuple[Count, Count]:
    """Count forward and backward of one implementation."""
    device, count = 'cpu', interpreted
    if kernels is plain:
        device, count = 'meta', dispatched
    x, dy = (
        torch.zeros(SHAPE, dtype=dtype, device=device).contiguous(
            memory_format=layout
        )
        for _ in range(2)
    )
    turns = steps(kernels, x, dy)
    next(turns)
    return count(lambda: next(turns), x), count(lambda: next(turns), x)


def rows() -> Iterator[dict[str, Any]]:
    """Return the table's rows."""
    from mmdet_megdet.sync_bn.kernels import fused

    found: dict[tuple[str, str, str], tuple[Count, Count]] = {}
    for name, kernels in (('plain', plain), ('Triton', fused)):
        for dtype in (torch.float32, torch.float16):
            for layout, memory_format in LAYOUTS.items():
                key = name, str(dtype).removeprefix('torch.'), layout
                found[key] = counted(kernels, dtype, memory_format)
    found['nn.SyncBatchNorm', 'any', 'any'] = NN_SYNC_BN
    found['limit', 'any', 'any'] = LIMIT
    for (name, dtype, layout), both in found.items():
        forward, backward = (f'{c.reads:.3g} + {c.writes:.3g}' for c in both)
        yield {
            'kernels': name,
            'dtype': dtype,
            'layout': layout,
            'forward: reads + writes': forward,
            'backward': backward,
            'passes': f'{sum(c.reads + c.writes for c in both):.3g}',
            'launches': sum(c.launches for c in both) or '-',
        }


if __name__ == '__main__':
    print(markdown(list(rows())))
