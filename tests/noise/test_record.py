# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest

from mmdet_megdet.noise import (
    FILE_NAME,
    Measurement,
    Moments,
    open_record,
    parts_as_json,
    read_records,
)


def measurement(update, g2):
    return Measurement(
        update=update,
        epoch=1,
        total_batch_size=8,
        lr=0.1,
        parts=parts_as_json(dict(total=Moments(g2, -3.0))),
        groups=1,
        micro_steps=4,
        part_images=2,
    )


def test_updates_made_again_and_a_cut_line(tmp_path):
    record = open_record(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_records(tmp_path)
    for update, g2 in ((20, 1.0), (40, 2.0), (60, 3.0), (40, 4.0)):
        record.append(measurement(update, g2))
    with record.path.open('a') as file:
        file.write('{"update": 80, "par')
    found = read_records(tmp_path)
    assert found == read_records(tmp_path / FILE_NAME)
    assert found == [
        dict(measurement(*pair), version=1)
        for pair in ((20, 1.0), (40, 4.0), (60, 3.0))
    ]
    record.resume(20)
    assert [r['update'] for r in read_records(tmp_path)] == [20]
