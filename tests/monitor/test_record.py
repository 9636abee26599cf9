# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import json
import os

import pytest

from mmdet_megdet.monitor import Record


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path)


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
