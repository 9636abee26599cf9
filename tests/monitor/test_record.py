# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Lines as they are written, dropped when a run resumes, and read again."""

from __future__ import annotations

import json
import os

import pytest

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.monitor import (
    Finding,
    JsonLines,
    LayerRecord,
    Plan,
    Record,
    Seconds,
    read_records,
)
from tests.data import bn_records


@pytest.fixture
def record(tmp_path):
    return JsonLines(tmp_path)


def iterations(record):
    return [
        json.loads(line)['iter']
        for line in record.path.read_text().splitlines()
    ]


def test_what_is_not_finite_is_null(record):
    record.append(
        dict(iter=1, values=[float('nan'), dict(a=float('-inf')), 0.1, None])
    )
    assert record.path.read_text() == (
        '{"version": 1, "iter": 1, "values": [null, {"a": null}, 0.1, null]}\n'
    )


def test_numbers_have_six_digits(record):
    record.append(dict(iter=1234567, value=1.23456789e-7))
    found = json.loads(record.path.read_text())
    assert (found['iter'], found['value']) == (1234567, 1.23457e-7)


def test_resuming_drops_what_comes_again(record):
    for iteration in (1, 100, 200, 300):
        record.append(dict(iter=iteration))
    record.resume(200)
    assert iterations(record) == [1, 100, 200]
    record.append(dict(iter=300))
    assert iterations(record) == [1, 100, 200, 300]


@pytest.mark.parametrize(
    'rest', [b'{"iter": 2', b'{"iter": 2}', b'\xff\n', b'[]\n', b'{"a": 1}\n']
)
def test_resuming_drops_a_line_that_was_cut_off(record, rest):
    record.append(dict(iter=1))
    with record.path.open('ab') as file:
        file.write(rest)
    record.resume(50)
    assert iterations(record) == [1]
    record.append(dict(iter=51))
    assert iterations(record) == [1, 51]


def test_the_file_is_replaced_as_a_whole(record, monkeypatch):
    for iteration in (1, 2):
        record.append(dict(iter=iteration))

    def fail(*_):
        raise OSError('disk full')

    monkeypatch.setattr(os, 'replace', fail)
    with pytest.raises(OSError, match='disk full'):
        record.resume(1)
    assert iterations(record) == [1, 2]


def test_resuming_without_a_file(record):
    record.resume(10)
    assert not record.path.exists()


def test_what_is_written_is_read_again(record, tmp_path):
    layer = LayerRecord(
        'bn1', 'MegDetSyncBN', 'synced', 2, 1, 128, 0.25, None, 0.5, 0.125,
        0, 1.5, [0.25, 0.5],
    )  # fmt: skip
    written = Record(
        iter=100,
        epoch=2,
        world_size=2,
        images_per_gpu=None,
        seconds=Seconds([1.0, 1.5], [0.25, 0.5]),
        plan=Plan(None, 4, {'all': 1}),
        layers=[layer],
        findings=[Finding('same-data', 'error', ['bn1'], [0, 1], 'Look.')],
    )
    record.append(written.as_json())
    assert read_records(tmp_path) == [written]


def test_what_a_later_version_adds_is_passed_over(tmp_path):
    content = bn_records.record(100)
    content['layers'][0]['something_new'] = 1
    (found,) = read_records(bn_records.write(tmp_path / 'run', [content]))
    assert found.as_json().keys() == (
        content.keys() - {'version', 'something_new'}
    )
    assert [layer.name for layer in found.layers] == bn_records.NAMES


def test_repeated_iterations_replace_the_earlier_ones(tmp_path):
    contents = [bn_records.record(n) for n in (100, 200, 300, 200)]
    contents[-1]['images_per_gpu'] = 7
    bn_records.write(tmp_path / 'run', contents)
    found = read_records(tmp_path / 'run')
    assert [r.iter for r in found] == [100, 200]
    assert found[-1].images_per_gpu == 7


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    contents = [bn_records.record(100)]
    folder = bn_records.write(tmp_path / 'run', contents, tail='{"iter": 2')
    assert [r.iter for r in read_records(folder)] == [100]


def change(**fields):
    return json.dumps(bn_records.record(200) | fields)


@pytest.mark.parametrize(
    ('line', 'said'),
    [
        ('[1]', r"line 2: not a JSON object: '\[1\]'. Remove the line"),
        ('{"a": NaN}', 'line 2: not a JSON object'),
        (change(version=2), 'line 2: written in version 2 of the format'),
        ('{"version": 1}', "line 2: not a record of .*'seconds'"),
        (change(world_size=3), 'line 2: not a record of .*4 times for'),
        (change(findings=[dict(bn_records.finding('a', 'bad'))]), "'bad'"),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, said):
    folder = bn_records.write(tmp_path / 'run', [bn_records.record(100)])
    with (folder / 'bn_stats.jsonl').open('a') as file:
        file.write(line + '\n')
    with pytest.raises(ConfigError, match=said):
        read_records(folder)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match='none: no such folder'):
        read_records(tmp_path / 'none')
    with pytest.raises(ConfigError, match="type='BNStatsMonitorHook'"):
        read_records(tmp_path)
    bn_records.write(tmp_path, [], tail='{')
    with pytest.raises(ConfigError, match='no complete record yet'):
        read_records(tmp_path)
