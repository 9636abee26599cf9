# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Memory runs out, of a GPU or of the machine."""

from __future__ import annotations

from dataclasses import replace

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..recipe import format_table, plan_rows, plan_with_fewer_images
from ..sync_bn import bn_sizes

# Of errors that are no OutOfMemoryError: the CPU's allocator, cuDNN, cuBLAS.
_PHRASES = ("can't allocate memory", 'out of memory', 'STATUS_ALLOC_FAILED')
_OTHERWISE = (
    'Less memory for the same images: --amp, with_cp=True in the backbone, '
    'smaller images; or more GPUs.'
)


@HOOKS.register_module()
class OutOfMemoryHook(Hook):
    """When memory runs out, add to the error what would fit.

    That is the plan with fewer images per GPU and the same total batch, and
    the options for it. (This needs ``train_cfg.type='UpdateTrainLoop'``.)
    """

    def on_error(self, runner: Runner, error: Exception) -> None:
        """Extend the error's message."""
        if is_out_of_memory(error):
            error.args = (f'{error}\n\n{advice(runner)}',)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there was no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        phrase in str(error) for phrase in _PHRASES
    )


def advice(runner: Runner) -> str:
    """Return what to run instead, in words and as a table."""
    sizes = bn_sizes(runner.model)
    known = [size for size in sizes if size is not None]
    # Of several the largest, which is the hardest to keep; None is all ranks.
    size = max(known) if known and len(known) == len(sizes) else None
    plan = replace(runner.train_loop.plan, bn_size=size)
    began = (
        f'Memory ran out with {plan.images_per_gpu} image(s) per GPU on rank '
        f'{runner.rank}.'
    )
    smaller = plan_with_fewer_images(plan)
    if smaller is None:
        return f'{began} {_OTHERWISE}'
    options = f'--images-per-gpu {smaller.images_per_gpu}'
    if smaller.bn_size != plan.bn_size:
        options += ' --bn-size none'
    table = format_table([plan_rows(plan), plan_rows(smaller)])
    text = (
        f'{began} With {smaller.images_per_gpu} the batch of '
        f'{plan.total_batch_size} images stays as it is, and so does the '
        f'learning rate: tools/train.py CONFIG {options}\n{table}'
    )
    if sizes and smaller.images_per_bn_group != plan.images_per_bn_group:
        text += (
            f'\nBatchNorm would take its statistics over '
            f'{smaller.images_per_bn_group} images instead of '
            f'{plan.images_per_bn_group}. To keep them: {_OTHERWISE}'
        )
    return text
