# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Plans as a table of plain text, one column each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..text import count
from .plan import BatchPlan


def plan_rows(plan: BatchPlan, images: int | None = None) -> dict[str, str]:
    """Return a plan's rows for a table, for a data set of so many images."""
    ranks = plan.ranks_per_bn_group
    rows = {
        'GPUs': str(plan.world_size),
        'images per GPU': str(plan.images_per_gpu),
        'images at once': str(plan.images_at_once),
        'accumulation': count(plan.accumulation, 'micro-step'),
        'total batch': f'{plan.total_batch_size} images',
        'BN statistics': f'{plan.images_per_bn_group} images',
        'BN groups': 'BN is local'
        if ranks == 1
        else f'{plan.world_size // ranks} x {ranks} GPUs',
    }
    if images is not None:
        updates, rest = divmod(images, plan.total_batch_size)
        rows['epoch'] = f'{updates} updates, {rest} images over'
    return rows


def format_table(columns: Sequence[Mapping[str, str]]) -> str:
    """Align columns, which have the same rows, under each other."""
    names = list(columns[0])
    cells = [names, *([column[name] for name in names] for column in columns)]
    widths = [max(map(len, texts)) for texts in cells]
    return '\n'.join(
        '  '.join(
            text.ljust(width) for text, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in zip(*cells, strict=True)
    )
