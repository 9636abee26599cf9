# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Where in which epoch a checkpoint was saved, and whether it fits here."""

from __future__ import annotations

import logging
from typing import TypedDict

from mmengine.logging import print_log

from ..errors import ConfigError


class UpdateNote(TypedDict):
    """The batch of an ``UpdateTrainLoop``, as its checkpoints note it."""

    counts: str  # 'updates': what the checkpoint's iter is a number of
    total_batch_size: int
    unit_size: int  # images of a BN unit
    images: int  # of the data set
    # Of the next update, from 0. Where training ended inside an epoch,
    # MMEngine counts that one as done.
    epoch: int
    epoch_began: int  # updates done when that epoch began


def resumed_epoch(
    saved: dict | None, now: UpdateNote, done: int
) -> tuple[int, int]:
    """Find in which epoch, from 0, a resumed run makes its next update.

    By the checkpoint's note, this run's, and the checkpoint's ``iter``.
    Return also how many updates were done when that epoch began. Where an
    epoch would have to go on with other updates, that is a ConfigError.
    """
    if saved is None or saved.get('counts') != 'updates':
        counted = 'does not say what it counts'
        if saved is not None:
            counted = (
                'counts micro-batches of '
                f'{saved["world_size"]} ranks x {saved["images_per_gpu"]} '
                'images'
            )
        raise ConfigError(
            f'The checkpoint is of another training loop: its iter={done} '
            f'{counted}, and UpdateTrainLoop counts updates of '
            f'{now["total_batch_size"]} images. Finish that training by its '
            'own loop, or take the weights alone: load_from without resume.'
        )
    inside = done - saved['epoch_began']
    whole = saved['images'] // saved['total_batch_size']
    changes = [
        f'{name} is {now[name]} and was {saved[name]}'
        for name in ('total_batch_size', 'unit_size', 'images')
        if now[name] != saved[name]
    ]
    if not changes:
        return saved['epoch'], saved['epoch_began']
    if 0 < inside < whole:
        raise ConfigError(
            f'The checkpoint is of update {inside} of {whole} in its epoch, '
            f'and that epoch was laid out otherwise: {"; ".join(changes)}. '
            'Resume with those of before, or from a checkpoint of an '
            "epoch's end, or take the weights alone: load_from without resume."
        )
    print_log(
        f'UpdateTrainLoop: from here on {"; ".join(changes)}. The number of '
        f'updates done stays {done}.',
        logger='current',
        level=logging.WARNING,
    )
    # Where the epoch's last update is done, its end is still to come.
    made = now['images'] // now['total_batch_size'] if inside else 0
    return saved['epoch'], done - made
