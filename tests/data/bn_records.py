# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Records as BNStatsMonitorHook writes them, of four layers and ranks."""

from pathlib import Path

from msgspec.structs import replace

from mmdet_megdet import monitor

SLOW = 2
NAMES = ['backbone.bn1', 'backbone.layer1.0.bn1', 'neck.0.bn', 'neck.1.bn']


def record(
    iteration, names=NAMES, ranks=4, findings=(), **changes
) -> monitor.Record:
    """A record in which one rank is slow, of layers with these changes.

    Each layer and iteration has numbers of its own.
    """
    layers = [
        monitor.LayerRecord(
            name=name,
            type='MegDetSyncBN',
            state='synced',
            ranks_per_group=ranks,
            calls=1,
            count=80000,
            between_share=(NAMES.index(name) + iteration / 1000) / 10,
            mean_drift=(NAMES.index(name) + 1) / iteration,
            dead_channels=0,
            running_var_max=12.5,
        )
        for name in names
    ]
    waits = [0.01 if rank == SLOW else 0.05 for rank in range(ranks)]
    return monitor.Record(
        iter=iteration,
        epoch=1 + iteration // 200,
        world_size=ranks,
        images_per_gpu=2,
        seconds=monitor.Seconds([0.2] * ranks, waits),
        layers=[replace(layer, **changes) for layer in layers],
        findings=list(findings),
    )


def finding(check: str, message: str) -> monitor.Finding:
    return monitor.Finding(check, 'warning', NAMES, [], message)


def write(work_dir: Path, records: list[monitor.Record]) -> Path:
    """What the hook leaves in a work dir."""
    work_dir.mkdir(exist_ok=True)
    for one in records:
        monitor.open_record(work_dir).append(one)
    return work_dir
