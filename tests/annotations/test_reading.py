# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Reading as pycocotools does, whatever a file looks like."""

from __future__ import annotations

import json
import locale
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


def read_slowly(monkeypatch, path, with_masks) -> Table:
    def refuse(*_):
        raise ValueError

    with monkeypatch.context() as patch:
        patch.setattr(reading, '_read_typed', refuse)
        return read_annotations(str(path), with_masks)


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
    slow = read_slowly(monkeypatch, path, with_masks)
    for portion in (1 << 22, 700, 1):
        monkeypatch.setattr(reading, '_PORTION', portion)
        typed = reading._read_typed(str(path), with_masks)
        for name, quick in vars(typed).items():
            assert np.array_equal(quick, getattr(slow, name)), name
    assert typed.forms.tolist()[:4] == [0, 3, 1, 0] * with_masks


@pytest.mark.parametrize(
    ('write', 'words'),
    [
        (lambda text: text.encode('utf-8-sig'), 'is written in utf-8-sig'),
        (lambda text: text.encode('utf-16'), 'is written in utf-16'),
        (lambda text: text.encode('utf-16-le'), 'is written in utf-16-le'),
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


def test_objects_within_annotations(tmp_path, monkeypatch):
    """An end between two of them is none between annotations."""
    path = tmp_path / 'a.json'
    content = content_of()
    for annotation in content['annotations']:
        annotation['attributes'] = [dict(a='}, {'), dict(b=[{}, {}, {}])]
    path.write_text(json.dumps(content))
    for portion in range(1, 400, 7):
        monkeypatch.setattr(reading, '_PORTION', portion)
        table = reading._read_typed(str(path), False)
        assert table.ids.tolist() == [100 + i for i in range(16)]


def test_under_another_locale_the_file_is_read_as_pycocotools_would(
    tmp_path, monkeypatch
):
    """Where open() does not read UTF-8, names come out otherwise."""
    monkeypatch.setattr(
        locale, 'getpreferredencoding', lambda _=True: 'latin-1'
    )
    path = tmp_path / 'a.json'
    path.write_text(TEXT)
    with pytest.raises(ValueError, match='latin-1'):
        reading._read_typed(str(path), False)


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
        (None, Form.NONE),
        ([], Form.NONE),
        ({}, Form.NONE),
        ('', Form.NONE),
        ([[]], Form.SHORT),
        ([[1, 2, 3, 4]], Form.SHORT),
        ([[1, 2, 3, 4, 5, 6, 7]], Form.SHORT),
        ([[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]], Form.POLYGONS),
        ([[1, 2, 3, 4, 5, '6']], Form.MALFORMED),
        ([[1, 2, 3, 4, 5, None]], Form.MALFORMED),
        ([[1, 2, 3, 4, 5, float('nan')]], Form.MALFORMED),
        ([1, 2, 3, 4, 5, 6], Form.MALFORMED),
        ('RLE', Form.MALFORMED),
        (dict(counts='abc'), Form.MALFORMED),
        (dict(size=[30, 40]), Form.MALFORMED),
        (dict(size=[30, 40], counts=None), Form.MALFORMED),
        (dict(size=[30, 40], counts='abc'), Form.RLE),
        (dict(size=[30, 40], counts=[1100, 100]), Form.RLE),
        (dict(size=[30, 40], counts=[1100]), Form.MALFORMED),
        (dict(size=[40, 30], counts='abc'), Form.OTHER_SIZE),
    ],
)
def test_forms(segmentation, form):
    assert form_of(segmentation, 40, 30) == form
