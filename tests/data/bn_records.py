# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Records as BNStatsMonitorHook writes them, of four layers and ranks."""

from __future__ import annotations

import json

RANKS = 4
SLOW = 2
NAMES = ['backbone.bn1', 'backbone.layer1.0.bn1', 'neck.0.bn', 'neck.1.bn']


def layer(name, iteration, ranks, **changes):
    """A layer's row; each layer and iteration has numbers of its own."""
    place = NAMES.index(name)
    content = dict(
        name=name,
        type='MegDetSyncBN',
        state='synced',
        ranks_per_group=ranks,
        calls=1,
        count=80000,
        between_share=(place + iteration / 1000) / 10,
        mean_drift=(place + 1) / iteration,
        dead_channels=0,
        running_var_max=12.5,
    )
    return content | changes


def record(iteration, names=NAMES, ranks=RANKS, findings=(), **changes):
    """A record of the contract, in which one rank is slow."""
    return dict(
        iter=iteration,
        epoch=1 + iteration // 200,
        world_size=ranks,
        images_per_gpu=2,
        seconds=dict(
            iteration=[0.2] * ranks,
            collectives=[0.01 if r == SLOW else 0.05 for r in range(ranks)],
        ),
        layers=[layer(name, iteration, ranks, **changes) for name in names],
        findings=list(findings),
        something_new='which readers pass over',
    )


def finding(check, level, message='Look.'):
    return dict(
        check=check, level=level, layers=NAMES, ranks=[], message=message
    )


def write(work_dir, contents, tail=''):
    """What the hook leaves in a work dir, and the start of another line."""
    work_dir.mkdir(exist_ok=True)
    lines = [json.dumps(content) + '\n' for content in contents]
    (work_dir / 'bn_stats.jsonl').write_text(''.join(lines) + tail)
    return work_dir
