# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""``grad_noise.jsonl``: one object for a measured update, a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from ..monitor import JsonLines
from .estimator import Moments

FILE_NAME = 'grad_noise.jsonl'


class Measurement(TypedDict):
    """What a line holds.

    Attributes:
        update: Updates done, this one included.
        epoch: Epoch that it belongs to, from 1.
        total_batch_size: Images of the update.
        lr: The optimizer's first learning rate in it.
        parts: Estimates ``g2`` of ``|G|^2`` and ``s`` of ``S`` by part of
            the model, and of the ``total``; each alone may be negative.
        groups: BN groups in a micro-step.
        micro_steps: Micro-steps of the update.
        part_images: Images of a BN group in a micro-step.
    """

    update: int
    epoch: int
    total_batch_size: int
    lr: float
    parts: dict[str, dict[str, float]]
    groups: int
    micro_steps: int
    part_images: int


def open_record(folder: Path) -> JsonLines:
    """Return the record of a work folder, to be written by one process."""
    return JsonLines(folder, FILE_NAME, counter='update')


def parts_as_json(
    parts: Mapping[str, Moments],
) -> dict[str, dict[str, float]]:
    """Return a measurement's parts as a line holds them."""
    return {name: moments._asdict() for name, moments in parts.items()}


def read_records(path: Path) -> list[Measurement]:
    """Return a file's measurements, by update.

    A line that was cut off is left out, and of an update that was made again
    the later line counts.

    Args:
        path (Path): The file, or the work folder that has it.

    Raises:
        FileNotFoundError: If there is none.
    """
    path = Path(path)
    if path.is_dir():
        path /= FILE_NAME
    found: dict[int, Measurement] = {}
    for line in path.read_text(encoding='utf-8').splitlines():
        try:
            content = json.loads(line)
        except ValueError:
            continue
        found[content['update']] = content
    return [found[update] for update in sorted(found)]
