# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""``grad_noise.jsonl``: one object for a measured update, a line."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from ..monitor import JsonLines

FILE_NAME = 'grad_noise.jsonl'


class Measurement(Struct, frozen=True):
    """A measured update.

    Attributes:
        update (int): Updates done, this one included.
        epoch (int): Epoch that it belongs to, from 1.
        total_batch_size (int): Images of the update.
        lr (float): The optimizer's first learning rate in it.
        parts (dict): Estimates ``g2`` of ``|G|^2`` and ``s`` of ``S`` by part
            of the model, and of the ``total``; each alone may be negative.
        groups (int): BN groups in a micro-step.
        micro_steps (int): Micro-steps of the update.
        part_images (int): Images of a BN group in a micro-step.
    """

    update: int
    epoch: int
    total_batch_size: int
    lr: float
    parts: dict[str, dict[str, float]]
    groups: int
    micro_steps: int
    part_images: int


def open_record(folder: str | Path) -> JsonLines[Measurement]:
    """Return the record in a work dir, to be written by one process."""
    return JsonLines(Path(folder, FILE_NAME), Measurement, counter='update')


def read_records(folder: str | Path) -> list[Measurement]:
    """Read a work dir's measurements, of a running job too.

    Raises:
        ConfigError: If there is none, or a line is broken.
    """
    return open_record(folder).read()
