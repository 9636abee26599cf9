# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Records as BNStatsMonitorHook writes them, of a ResNet-50 with FPN."""

from __future__ import annotations

import json

RANKS = 4
SLOW = 2


def resnet50_fpn():
    """Names of the 53 + 8 norm layers."""
    names = ['backbone.bn1']
    for stage, blocks in enumerate((3, 4, 6, 3), 1):
        for block in range(blocks):
            prefix = f'backbone.layer{stage}.{block}'
            names += [f'{prefix}.bn{number}' for number in (1, 2, 3)]
            names += [f'{prefix}.downsample.1'] * (block == 0)
    for convs in ('lateral_convs', 'fpn_convs'):
        names += [f'neck.{convs}.{level}.bn' for level in range(4)]
    return names


NAMES = resnet50_fpn()
# Of layer i at iteration n; each a number of its own.
SHARE = {
    (name, n): (i + n / 1000) / 100
    for i, name in enumerate(NAMES)
    for n in (100, 200, 300)
}


def layer(name, iteration, ranks=RANKS, **changes):
    """A layer's row."""
    place = NAMES.index(name)
    content = dict(
        name=name,
        type='MegDetSyncBN',
        state='synced',
        ranks_per_group=ranks,
        calls=1,
        count=80000,
        between_share=SHARE[name, iteration],
        var_spread=0.25,
        mean_drift=(place + 1) / iteration,
        var_drift=2 * (place + 1) / iteration,
        dead_channels=0,
        running_var_max=12.5,
        collective_seconds=[0.004] * ranks,
    )
    return content | changes


def record(iteration, names=NAMES, ranks=RANKS, findings=(), **changes):
    """A record of the contract, in which one rank is slow."""
    layers = [layer(name, iteration, ranks, **changes) for name in names]
    waits = [0.01 if rank == SLOW else 0.05 for rank in range(ranks)]
    return dict(
        version=1,
        iter=iteration,
        epoch=1 + iteration // 200,
        world_size=ranks,
        images_per_gpu=2,
        seconds=dict(iteration=[0.2] * ranks, collectives=waits),
        plan=dict(
            total_batch_size=256,
            accumulative_counts=32,
            bn_sizes={'all': 53, '4': 8},
        ),
        layers=layers,
        findings=list(findings),
        something_new='which readers pass over',
    )


def finding(check, level, message='<b>bold</b> & "quoted"', ranks=(), n=0):
    layers = NAMES[:n]
    return dict(
        check=check,
        level=level,
        layers=layers,
        ranks=list(ranks),
        message=message,
    )


def write(work_dir, contents, tail=''):
    """What the hook leaves in a work dir, and the start of another line."""
    work_dir.mkdir(exist_ok=True)
    lines = [json.dumps(content) + '\n' for content in contents]
    (work_dir / 'bn_stats.jsonl').write_text(''.join(lines) + tail)
    return work_dir
