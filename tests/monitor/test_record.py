# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Lines as they are written, dropped when a run resumes, and read again."""

import math
import os
from unittest import mock

import msgspec
import pytest

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.monitor import open_record, read_records
from tests.data.bn_records import finding, record, write


def written(folder, *iterations, tail=b''):
    """The file with these iterations and what follows them."""
    write(folder, [record(iteration) for iteration in iterations])
    path = folder / 'bn_stats.jsonl'
    with path.open('ab') as file:
        file.write(tail)
    return path


def test_what_is_written_is_read_again(tmp_path):
    told = finding('dead-channels', 'Look.')
    write(tmp_path, [record(100, findings=[told], mean_drift=math.nan)])
    # What is not finite is null.
    expected = record(100, findings=[told], mean_drift=None)
    assert read_records(tmp_path) == [expected]


def test_resuming_drops_what_comes_again(tmp_path):
    """And a line that was not finished; all or nothing."""
    unfinished = msgspec.json.encode(record(200))
    path = written(tmp_path, 100, 200, 300, tail=unfinished)
    lines = path.read_bytes().splitlines(keepends=True)
    open_record(tmp_path).resume(200)
    assert path.read_bytes() == b''.join(lines[:2])
    full = mock.patch.object(os, 'replace', side_effect=OSError('disk full'))
    with full, pytest.raises(OSError, match='disk full'):
        open_record(tmp_path).resume(100)
    assert path.read_bytes() == b''.join(lines[:2])


def test_repeated_iterations_replace_the_earlier_ones(tmp_path):
    again = msgspec.to_builtins(record(200))
    again |= dict(images_per_gpu=7, something_new='which readers pass over')
    tail = msgspec.json.encode(again) + b'\n{"iter": 2'
    written(tmp_path, 100, 200, 300, tail=tail)
    found = read_records(tmp_path)
    assert [one.iter for one in found] == [100, 200]
    assert found[-1].images_per_gpu == 7


@pytest.mark.parametrize(
    ('tail', 'message'),
    [
        (None, 'nothing is recorded'),
        (b'{"iter', 'nothing is recorded'),
        (b'{}\n', 'line 1: .* missing required field .* Remove the line to'),
    ],
)
def test_what_cannot_be_read(tmp_path, tail, message):
    if tail is not None:
        written(tmp_path, tail=tail)
    with pytest.raises(ConfigError, match=message):
        read_records(tmp_path)
