# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Lines as they are written, dropped when a run resumes, and read again."""

from __future__ import annotations

import json
import math
import os

import pytest

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.monitor import (
    Finding,
    LayerRecord,
    Record,
    Seconds,
    open_record,
    read_records,
)
from tests.data import bn_records


def iterations(folder):
    return [record.iter for record in read_records(folder)]


def test_what_is_written_is_read_again(tmp_path):
    layer = LayerRecord(
        'bn1', 'MegDetSyncBN', 'synced', 2, 1, 128, 0.25, None, 0, 1.5
    )
    written = Record(
        100, 2, 2, None, Seconds([1.0, math.nan], [0.25, 0.5]), [layer],
        [Finding('same-data', 'error', ['bn1'], [0, 1], 'Look.')],
    )  # fmt: skip
    open_record(tmp_path).append(written)
    (found,) = read_records(tmp_path)
    # What is not finite is null.
    assert found.seconds.iteration == [1.0, None]
    assert (found.layers, found.findings) == ([layer], written.findings)


@pytest.mark.parametrize('cut_off', ['', '{"iter": 2', 'whole line'])
def test_resuming_drops_what_comes_again(tmp_path, cut_off):
    """And a line that was not finished."""
    if cut_off == 'whole line':
        cut_off = json.dumps(bn_records.record(200))
    contents = [bn_records.record(n) for n in (100, 200, 300)]
    bn_records.write(tmp_path, contents, cut_off)
    record = open_record(tmp_path)
    record.resume(200)
    assert iterations(tmp_path) == [100, 200]
    assert record.path.read_bytes().count(b'\n') == 2
    assert record.path.read_bytes().endswith(b'\n')


def test_the_file_is_replaced_as_a_whole(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError('disk full')

    bn_records.write(tmp_path, [bn_records.record(n) for n in (100, 200)])
    monkeypatch.setattr(os, 'replace', fail)
    with pytest.raises(OSError, match='disk full'):
        open_record(tmp_path).resume(100)
    assert iterations(tmp_path) == [100, 200]


def test_repeated_iterations_replace_the_earlier_ones(tmp_path):
    contents = [bn_records.record(n) for n in (100, 200, 300, 200)]
    contents[-1]['images_per_gpu'] = 7
    bn_records.write(tmp_path, contents, tail='{"iter": 2')
    assert iterations(tmp_path) == [100, 200]
    assert read_records(tmp_path)[-1].images_per_gpu == 7


def without(field):
    return {k: v for k, v in bn_records.record(200).items() if k != field}


@pytest.mark.parametrize(
    ('line', 'said'),
    [
        ('[1]', 'line 2: Expected `object`, got `array`.* Remove the line'),
        ('{"iter', 'line 2: Input data was truncated'),
        (json.dumps(without('seconds')), 'missing required field `seconds`'),
        (
            json.dumps(bn_records.record(200, findings=[
                bn_records.finding('a', 'bad')])),
            r"'bad' - at `\$.findings",
        ),
    ],
)  # fmt: skip
def test_a_broken_line_is_named(tmp_path, line, said):
    bn_records.write(tmp_path, [bn_records.record(100)], line + '\n')
    with pytest.raises(ConfigError, match=said):
        read_records(tmp_path)


@pytest.mark.parametrize('tail', [None, '{"iter'])
def test_no_record_is_refused(tmp_path, tail):
    if tail:
        bn_records.write(tmp_path, [], tail)
    with pytest.raises(ConfigError, match='nothing is recorded'):
        read_records(tmp_path)
