# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""``grad_noise.jsonl``: one object for a measured update, a line."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from ..monitor import JsonLines

FILE_NAME = 'grad_noise.jsonl'


class Measurement(Struct, frozen=True):
    """A measured update.

    ``parts`` has estimates ``g2`` of ``|G|^2`` and ``s`` of ``S`` by part of
    the model, and of the ``total``; each alone may be negative.
    """

    update: int  # from 1
    epoch: int  # from 1
    total_batch_size: int
    lr: float  # the optimizer's first
    parts: dict[str, dict[str, float]]
    groups: int  # BN groups in a micro-step
    micro_steps: int
    part_images: int  # of a BN group in a micro-step


def open_record(folder: str | Path) -> JsonLines[Measurement]:
    """Return the record in a work dir, to be written by one process."""
    return JsonLines(Path(folder, FILE_NAME), Measurement, counter='update')


def read_records(folder: str | Path) -> list[Measurement]:
    """Read a work dir's measurements, of a running job too."""
    return open_record(folder).read()
