# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Reading as pycocotools does, whatever a file looks like."""

import json
import random

import numpy as np
import pytest
from pycocotools.coco import COCO

from mmdet_megdet.annotations import reading
from mmdet_megdet.annotations.reading import read_annotations
from mmdet_megdet.annotations.segmentation import Form
from tests.annotations.configs import content_of

TEXT = json.dumps(content_of() | dict(info=dict(by='Zoë')), ensure_ascii=False)
WHOLE = TEXT.encode()


@pytest.fixture
def path(tmp_path):
    return tmp_path / 'a.json'


@pytest.mark.parametrize(('content', 'words'), [
    (TEXT.encode('utf-8-sig'), 'Unexpected UTF-8 BOM'),
    (TEXT.encode('utf-16'), 'UnicodeDecodeError'),
    (TEXT.encode('latin-1'), "can't decode byte 0xeb"),
    (WHOLE[:-10], 'is cut off, after '),
    (WHOLE[:99] + b'}', 'JSONDecodeError'),
    (WHOLE + b'}', 'JSONDecodeError: Extra data'),
    (b'', 'is empty (0 bytes)'),
    (WHOLE.replace(b'32}', b'32,}'), 'JSONDecode'),
    (b'[' + WHOLE + b']', 'holds a list, no object'),
])  # fmt: skip
def test_what_pycocotools_refuses(path, content, words):
    path.write_bytes(content)
    with pytest.raises(Exception):  # noqa: B017, PT011  any
        COCO(path)
    (verdict,) = read_annotations(str(path), False)
    assert verdict.level == 'broken'
    assert str(path) in verdict.text
    assert words in verdict.text


@pytest.mark.parametrize(('old', 'new'), [
    ('{"by"', '{"score": NaN, "by"'),
    ('{"by"', '{"score": 1e999, "by"'),
    ('"Zo', '"\\ud800'),
    ('"iscrowd": 0', '"iscrowd": false'),
    ('"id": 1', '"id": 1.0e0, "id": 1'),
    ('"area": 80', '"area": 8e1'),
    ('"images"', '"im\\u0061ges"'),
    ('{"images"', ' \n\n{"images"'),
    ('"image_id": 1,', '"image_id": 1.0,'),
    ('"area": 80', '"area": null, "area": 80'),
])  # fmt: skip
def test_what_pycocotools_accepts(path, old, new):
    assert old in TEXT
    path.write_text(TEXT.replace(old, new))
    COCO(path)
    table = read_annotations(str(path), True)
    assert table.image_places.tolist() == [i // 2 for i in range(16)]
    assert table.areas.tolist() == [80] * 16


def test_never_accepts_what_pycocotools_refuses(path):
    """Bytes changed at random; the typed decoder looks into all of them."""
    draw = random.Random(0)
    taken = 0
    for _ in range(300):
        data = bytearray(WHOLE)
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


FORMS = [
    (None, Form.BAD),
    ([], Form.BAD),
    ('RLE', Form.BAD),
    ([[]], Form.SHORT),
    ([[1, 2, 3, 4]], Form.SHORT),
    ([[1, 2, 3, 4, 5, 6, 7]], Form.SHORT),
    ([[1, 2, 3, 4], [1, 2, 3, 4, 5, -6e-1]], Form.GOOD),
    ([[1, 2, 3, 4, 5, '6']], Form.BAD),
    ([[[1, 2], [3, 4], [5, 6]] * 2], Form.BAD),
    ([1, 2, 3, 4, 5, 6], Form.BAD),
    (dict(size=[32, 48]), Form.BAD),
    (dict(size=[32, 48], counts='abc'), Form.GOOD),
    (dict(size=[32, 48], counts=[1500, 36]), Form.GOOD),
    (dict(size=[32, 48], counts=[1500]), Form.BAD),
    (dict(size=[48, 32], counts='abc'), Form.BAD),
    ([[1, 2, 3, 4, 5, float('nan')]], Form.BAD),  # not of the typed decoder
]


@pytest.mark.parametrize('with_masks', [False, True])
def test_both_ways_read_the_same(path, monkeypatch, with_masks):
    content = content_of()
    annotations = content['annotations']
    annotations[0].update(iscrowd=1)
    annotations[1].update(ignore=1, bbox=[1, 2.5, 3, 4])
    del annotations[2]['iscrowd']
    for annotation, (segmentation, _) in zip(annotations, FORMS, strict=True):
        annotation['segmentation'] = segmentation
    del annotations[0]['segmentation']
    path.write_text(json.dumps(content))
    slow = reading._read_as_pycocotools(str(path), with_masks)
    assert slow.forms.tolist() == [form for _, form in FORMS] * with_masks
    with pytest.raises(reading.msgspec.MsgspecError):
        reading._read_typed(str(path), with_masks)
    annotations[-1]['segmentation'] = None  # bad, too
    path.write_text(json.dumps(content))
    monkeypatch.setattr(reading, '_PORTION', 5)
    typed = reading._read_typed(str(path), with_masks)
    for name, quick in vars(typed).items():
        assert np.array_equal(quick, getattr(slow, name)), name
