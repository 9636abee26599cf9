# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Random numbers by what they are for: an image, an update, a micro-batch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ..errors import ConfigError

_GENERATORS = (
    np.random.Generator,
    np.random.BitGenerator,
    np.random.RandomState,
    random.Random,
    torch.Generator,
)


def seed_sequence(*words: int) -> np.random.SeedSequence:
    """Return the stream that these numbers, none negative, name.

    They are mixed, not added: (seed, epoch) = (1, 0) and (0, 1) have nothing
    in common. Nor have streams of different numbers of words.
    """
    # SeedSequence pads with zeros: without their number, (1,) and (1, 0)
    # would be alike.
    return np.random.SeedSequence([*words, len(words)])


def seed_generators(*words: int, devices: bool = True) -> None:
    """Seed Python's, numpy's and torch's global generators.

    Torch's are those of all ``devices``, or else the CPU's alone.
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


def seed_by_image(dataset: Any, seed: int) -> None:
    """Make an image's random numbers depend on seed, epoch and image alone.

    Before each image of a batch that knows its epoch
    (:class:`~.batch_sampler.EpochBatch`) the global generators of Python,
    numpy and torch (the CPU's) are seeded, and put back in the end. 'Image'
    is the index in this data set: what mosaics and repeated tries draw is the
    image's too. A transform that keeps images, or a generator of its own,
    from one image to the next is a ConfigError.

    To be called before workers start. Calling it again changes the seed.
    """
    for level in _levels(dataset):
        _check_pipeline(level)
    # Where torch looks for what loads a batch. A wrapper class would hide the
    # data set from hooks.
    dataset.__getitems__ = _ImageStreams(dataset, seed)


class _ImageStreams:
    """Loads a batch image by image; goes to workers with the data set."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed

    def __call__(self, batch: Sequence[int]) -> list[Any]:
        epoch = getattr(batch, 'epoch', None)
        if epoch is None:
            return [self.dataset[image] for image in batch]
        images = []
        with generators_kept():
            for image in batch:
                seed_generators(self.seed, epoch, image, devices=False)
                images.append(self.dataset[image])
        return images


def _levels(dataset: Any) -> Iterator[Any]:
    """The data set and those inside it."""
    yield dataset
    inner = getattr(dataset, 'datasets', None) or [
        getattr(dataset, 'dataset', None)
    ]
    for part in inner:
        if part is not None:
            yield from _levels(part)


def _check_pipeline(dataset: Any) -> None:
    own = getattr(dataset, '__dict__', {})
    found = [(dataset, name, value) for name, value in own.items()]
    found += _reachable(own.get('pipeline'), dataset, 'pipeline', set())
    for owner, name, value in found:
        kind = type(owner)
        if isinstance(value, _GENERATORS):
            raise ConfigError(
                f'{kind.__module__}.{kind.__qualname__} draws from a random '
                f'generator of its own ({name}), so that what an image gets '
                'would depend on what its worker loaded before. Let it draw '
                'from the global ones, or train with EpochBasedTrainLoop.'
            )
        # mmdet's name for it, and that of libraries after its model; some
        # have the list though they do not use it.
        if name == 'results_cache' and getattr(owner, 'use_cached', True):
            raise ConfigError(
                f'{kind.__name__} mixes an image with those that its worker '
                'loaded before, so that what an image gets would depend on '
                'the hardware. Use Mosaic or MixUp, in a '
                'MultiImageMixDataset, or train with EpochBasedTrainLoop.'
            )


def _reachable(
    node: Any, owner: Any, name: str, seen: set[int]
) -> Iterator[tuple[Any, str, Any]]:
    """(owner, attribute, value) of all that a pipeline's objects hold."""
    if id(node) in seen or isinstance(node, type | ModuleType):
        return
    seen.add(id(node))
    yield owner, name, node
    if isinstance(node, dict):
        parts = [(owner, name, value) for value in node.values()]
    elif isinstance(node, list | tuple):
        parts = [(owner, name, value) for value in node]
    else:
        own = getattr(node, '__dict__', {})
        parts = [(node, key, value) for key, value in own.items()]
    for owner, name, value in parts:
        yield from _reachable(value, owner, name, seen)
