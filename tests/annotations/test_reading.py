# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Reading as pycocotools does, whatever a file looks like."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from pycocotools.coco import COCO

from mmdet_megdet.annotations import reading
from mmdet_megdet.annotations.reading import read_annotations
from mmdet_megdet.annotations.segmentation import Form, form_of
from mmdet_megdet.annotations.table import Table
from tests.annotations.configs import content_of

TEXT = json.dumps(content_of() | dict(info=dict(by='Zoë')), ensure_ascii=False)


def accepts(path) -> bool:
    """Whether pycocotools reads a file."""
    try:
        COCO(path)
    except Exception:
        return False
    return True


@pytest.mark.parametrize('with_masks', [False, True])
def test_both_ways_read_the_same(tmp_path, monkeypatch, with_masks):
    path = tmp_path / 'a.json'
    content = content_of()
    content['annotations'][0] |= dict(iscrowd=1, segmentation=[])
    content['annotations'][1]['segmentation'] = dict(
        size=[32, 48], counts='abc'
    )
    del content['annotations'][2]['iscrowd']
    del content['annotations'][3]['segmentation']
    content['annotations'][4].update(ignore=1, bbox=[1, 2.5, 3, 4])
    path.write_text(json.dumps(content))
    monkeypatch.setattr(reading, '_PORTION', 5)
    typed = reading._read_typed(str(path), with_masks)
    slow = reading._read_as_pycocotools(str(path), with_masks)
    for name, quick in vars(typed).items():
        assert np.array_equal(quick, getattr(slow, name)), name
    assert typed.forms.tolist()[:4] == [2, 0, 0, 2] * with_masks


@pytest.mark.parametrize(
    ('write', 'words'),
    [
        (lambda text: text.encode('utf-8-sig'), 'Unexpected UTF-8 BOM'),
        (lambda text: text.encode('utf-16'), 'UnicodeDecodeError'),
        (lambda text: text.encode('latin-1'), "can't decode byte 0xeb"),
        (lambda text: text[:-10].encode(), 'is cut off, after '),
        (lambda text: text.encode()[:99] + b'}', 'JSONDecodeError'),
        (lambda text: (text + '}').encode(), 'JSONDecodeError: Extra data'),
        (lambda text: b'', 'is empty (0 bytes)'),
        (lambda text: text.encode().replace(b'"id"', b"'id'"), 'JSONDecode'),
        (lambda text: text.encode().replace(b'32}', b'32,}'), 'JSONDecode'),
        (lambda text: f'[{text}]'.encode(), 'holds a list, no object'),
    ],
)
def test_what_pycocotools_refuses(tmp_path, write, words):
    path = tmp_path / 'a.json'
    path.write_bytes(write(TEXT))
    assert not accepts(path)
    (verdict,) = read_annotations(str(path), False)
    assert verdict.level == 'broken'
    assert str(path) in verdict.text
    assert words in verdict.text


@pytest.mark.parametrize(
    'change',
    [
        lambda text: text.replace('{"by"', '{"score": NaN, "by"'),
        lambda text: text.replace('{"by"', '{"score": 1e999, "by"'),
        lambda text: text.replace('"Zo', '"\\ud800'),
        lambda text: text.replace('"iscrowd": 0', '"iscrowd": false'),
        lambda text: text.replace('"id": 1', '"id": 1.0e0, "id": 1'),
        lambda text: text.replace('"area": 80', '"area": 8e1'),
        lambda text: text.replace('"images"', '"im\\u0061ges"'),
        lambda text: text + '\n\n',
        lambda text: text.replace('"image_id": 1,', '"image_id": 1.0,'),
        lambda text: text.replace('"area": 80', '"area": null, "area": 80'),
    ],
)
def test_what_pycocotools_accepts(tmp_path, change):
    path = tmp_path / 'a.json'
    path.write_text(change(TEXT))
    assert change(TEXT) != TEXT
    assert accepts(path)
    table = read_annotations(str(path), True)
    assert isinstance(table, Table), table
    assert table.image_places.tolist() == [i // 2 for i in range(16)]
    assert table.areas.tolist() == [80] * 16


def test_never_accepts_what_pycocotools_refuses(tmp_path):
    """Bytes changed at random; the typed decoder looks into all of them."""
    draw = random.Random(0)
    whole = TEXT.encode()
    path = tmp_path / 'a.json'
    taken = 0
    for _ in range(300):
        data = bytearray(whole)
        place = draw.randrange(len(data))
        data[place] = draw.choice(b'{}[]",:09.-e\\u n\x00\x1f\n\xc3\xff')
        path.write_bytes(data)
        try:
            reading._read_typed(str(path), draw.random() < 0.5)
        except (reading.msgspec.MsgspecError, ValueError):
            continue
        taken += 1
        json.loads(path.read_text())
    assert taken > 30


@pytest.mark.parametrize(
    ('segmentation', 'form'),
    [
        (None, Form.BAD),
        ([], Form.BAD),
        ('RLE', Form.BAD),
        ([[]], Form.SHORT),
        ([[1, 2, 3, 4]], Form.SHORT),
        ([[1, 2, 3, 4, 5, 6, 7]], Form.SHORT),
        ([[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]], Form.GOOD),
        ([[1, 2, 3, 4, 5, '6']], Form.BAD),
        ([[1, 2, 3, 4, 5, float('nan')]], Form.BAD),
        ([[[1, 2], [3, 4], [5, 6]] * 2], Form.BAD),
        ([1, 2, 3, 4, 5, 6], Form.BAD),
        (dict(size=[30, 40]), Form.BAD),
        (dict(size=[30, 40], counts='abc'), Form.GOOD),
        (dict(size=[30, 40], counts=[1100, 100]), Form.GOOD),
        (dict(size=[30, 40], counts=[1100]), Form.BAD),
        (dict(size=[40, 30], counts='abc'), Form.BAD),
    ],
)
def test_forms(segmentation, form):
    assert form_of(segmentation, 40, 30) == form
