# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The doctor's lines on data sets; tests/annotations has the verdicts."""

import pytest
from checks import data, ranks
from checks.report import FAIL, PASS, WARN
from mmengine.config import Config
from PIL import Image

from mmdet_megdet.annotations import judge
from mmdet_megdet.demo_data import generate_shapes
from tests.tools.checks.findings import levels, only
from tests.tools.command import ROOT

CONFIG = ROOT / 'configs' / 'megdet' / 'shapes_r18_fpn.py'


@pytest.fixture
def cfg(tmp_path, monkeypatch):
    """The demo's config, without validation and test."""
    generate_shapes(tmp_path, train=24, val=1, size=(128, 128))
    monkeypatch.setenv('SHAPES_ROOT', str(tmp_path))
    cfg = Config.fromfile(CONFIG)
    for role in ('val', 'test'):
        cfg[f'{role}_dataloader'] = cfg[f'{role}_evaluator'] = None
    return cfg


def images_of(cfg, most=None, decode=False):
    return list(data.check_images(judge(cfg), most, decode))


def test_images(cfg, tmp_path):
    paths = sorted((tmp_path / 'images' / 'train').iterdir())
    names = [path.name for path in paths]
    paths[0].unlink()
    paths[1].write_bytes(paths[1].read_bytes()[:2000])
    paths[2].write_bytes(b'')
    Image.new('RGB', (128, 64)).save(paths[3])
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new('RGB', (128, 40), 'gray').save(paths[4], exif=exif)
    with Image.open(paths[5]) as image:
        image.copy().save(paths[5], exif=exif)
    expected = [
        f'1 of 24 are not there: {names[0]} (id 0)',
        f'2 of 24 cannot be read: {names[1]} (id 1): cut off, after 2000 byte',
        f'2 of 24 differ in size from the annotation file: {names[3]} (id 3): '
        f'128x64, not 128x128, {names[4]} (id 4): 40x128, not 128x128',
        '1 of 24 are turned by an EXIF orientation that leaves their size: '
        f'{names[5]} (id 5)',
    ]
    for decode in (False, True):
        findings = images_of(cfg, decode=decode)
        assert levels(findings) == [FAIL, FAIL, FAIL, WARN]
        for finding, text in zip(findings, expected, strict=True):
            assert finding.text.startswith(text)
    # The pipeline's own option counts.
    reader = cfg.train_dataloader.dataset.pipeline[0]
    reader.color_type = 'color_ignore_orientation'
    *_, sizes = images_of(cfg)
    assert sizes.text.endswith(f'{names[4]} (id 4): 128x40, not 128x128')
    # Six, spread evenly: 0, 4, 8...
    texts = [f.text.partition(':')[0] for f in images_of(cfg, most=6)]
    assert texts == [
        '1 of 6 are not there',
        '1 of 6 differ in size from the annotation file',
    ]


def test_what_is_not_loaded(cfg, tmp_path):
    (tmp_path / 'images' / 'train' / '000009.png').unlink()
    dataset = cfg.train_dataloader.dataset
    assert levels(images_of(cfg)) == [FAIL]
    dataset.indices = 9
    assert levels(images_of(cfg)) == [PASS]
    dataset.data_root = ''
    dataset.ann_file = f'{tmp_path}/{dataset.ann_file}'
    dataset.data_prefix.img = '/no/such'
    assert only(images_of(cfg), FAIL).text == 'there is no folder /no/such'
    dataset.data_prefix.img = 's3://images'
    assert 'not on a disk' in only(images_of(cfg), WARN).text
    dataset.pipeline[0].type = 'LoadSomehow'
    assert 'no LoadImageFromFile' in only(images_of(cfg), WARN).text


def test_images_that_only_a_test_lacks(cfg):
    cfg.train_dataloader.dataset.data_prefix.img = '/no/such'
    cfg.test_dataloader, cfg.train_dataloader = cfg.train_dataloader, None
    assert levels(images_of(cfg)) == [WARN]


def test_files_that_ranks_compare(cfg, tmp_path):
    """As tools/dist_doctor.py does: by their content."""
    path = tmp_path / 'annotations' / 'instances_train.json'
    text = path.read_text()
    before = ranks.annotation_files(cfg)
    assert list(before) == [str(path)]
    assert before[str(path)].startswith(f'{len(text)} bytes, digest ')
    path.write_text(text.replace('"id":0', '"id":9', 1))
    assert ranks.annotation_files(cfg) != before
    path.unlink()
    assert ranks.annotation_files(cfg) == {str(path): 'not there'}
