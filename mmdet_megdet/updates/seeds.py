# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Random streams that are known by what they are for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_sequence(*words: int) -> np.random.SeedSequence:
    """Return the stream that these numbers name.

    The numbers are mixed, not added: (seed, epoch) = (1, 0) and (0, 1) have
    nothing in common. Nor have streams of different numbers of words.

    Args:
        *words (int): Such as seed, epoch and image; none is negative.
    """
    # SeedSequence pads with zeros: without their number, (1,) and (1, 0)
    # would be alike.
    return np.random.SeedSequence([*words, len(words)])


def seed_generators(*words: int, devices: bool = True) -> None:
    """Seed Python's, numpy's and torch's global generators.

    Args:
        *words (int): As for :func:`seed_sequence`.
        devices (bool): Whether to seed torch's generators of all devices, or
            the CPU's alone. Defaults to True.
    """
    state = seed_sequence(*words).generate_state(12)
    random.seed(state[0:4].tobytes())
    np.random.seed(state[4:8])
    seed = int(state[8:10].view(np.uint64)[0])
    if devices:
        torch.manual_seed(seed)
    else:
        torch.random.default_generator.manual_seed(seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Put the global generators (torch's of the CPU) back afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    cpu = torch.random.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.random.default_generator.set_state(cpu)
