# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Lines as they are written, dropped when a run resumes, and read again."""

from __future__ import annotations

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


def iterations(folder):
    return [record.iter for record in read_records(folder)]


def test_what_is_written_is_read_again(tmp_path):
    told = finding('dead-channels', 'Look.')
    line = record(100, findings=[told], mean_drift=math.nan)
    (found,) = read_records(write(tmp_path, [line]))
    # What is not finite is null.
    assert [layer.mean_drift for layer in found.layers] == [None] * 4
    assert found == record(100, findings=[told], mean_drift=None)


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
    assert iterations(tmp_path) == [100, 200]


def test_repeated_iterations_replace_the_earlier_ones(tmp_path):
    again = msgspec.to_builtins(record(200))
    again |= dict(images_per_gpu=7, something_new='which readers pass over')
    tail = msgspec.json.encode(again) + b'\n{"iter": 2'
    written(tmp_path, 100, 200, 300, tail=tail)
    assert iterations(tmp_path) == [100, 200]
    assert read_records(tmp_path)[-1].images_per_gpu == 7


def test_a_broken_line_is_named(tmp_path):
    written(tmp_path, 100, tail=b'{"iter": 200}\n')
    said = 'line 2: .* missing required field .* Remove the line to read'
    with pytest.raises(ConfigError, match=said):
        read_records(tmp_path)


def test_no_record_is_refused(tmp_path):
    for _ in range(2):
        with pytest.raises(ConfigError, match='nothing is recorded'):
            read_records(tmp_path)
        written(tmp_path, tail=b'{"iter')
