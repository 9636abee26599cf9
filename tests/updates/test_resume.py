# Copyright (c) mmdet_megdet contributors. All rights reserved.
import pytest

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.updates import UpdateNote, resumed_epoch

# Four updates an epoch; the checkpoint is of the second one.
SAVED = UpdateNote(
    counts='updates',
    total_batch_size=8,
    unit_size=4,
    images=32,
    epoch=1,
    epoch_began=4,
)
OTHER = dict(counts='batches', world_size=2, images_per_gpu=4)


def test_where_it_goes_on():
    assert resumed_epoch(SAVED, SAVED, 6) == (1, 4)
    # At an epoch's beginning, with any other batch.
    larger, other = dict(total_batch_size=16), dict(images=40, unit_size=8)
    assert resumed_epoch(SAVED, SAVED | larger, 4) == (1, 4)
    assert resumed_epoch(SAVED, SAVED | other, 4) == (1, 4)
    # Its last update is done, and its end still to come: of two updates.
    assert resumed_epoch(SAVED, SAVED | larger, 8) == (1, 6)


@pytest.mark.parametrize(
    ('saved', 'now', 'message'),
    [
        (None, {}, 'iter=6 does not say what it counts'),
        (OTHER, {}, 'iter=6 counts micro-batches of 2 ranks x 4 images'),
        (
            SAVED,
            dict(total_batch_size=4, images=40),
            'update 2 of 4 in its epoch.*total_batch_size is 4 and was 8; '
            'images is 40 and was 32',
        ),
    ],
)
def test_what_cannot_go_on(saved, now, message):
    with pytest.raises(ConfigError, match=message):
        resumed_epoch(saved, SAVED | now, 6)
