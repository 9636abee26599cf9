# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The doctor's lines on data sets; tests/annotations has the verdicts."""

from __future__ import annotations

import sys

import pytest
from mmengine.config import Config
from PIL import Image

from mmdet_megdet.annotations import judge
from mmdet_megdet.demo_data import generate_shapes
from tests.tools.checks.findings import levels
from tests.tools.command import ROOT, TINY_CONFIG, TOOLS

sys.path.insert(0, str(TOOLS))  # as for a script there

from checks import data, ranks
from checks.report import FAIL, PASS, WARN

CONFIG = ROOT / 'configs' / 'megdet' / 'shapes_r18_fpn.py'
IMAGES = 24


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    """The generated data set, not to be changed."""
    root = tmp_path_factory.mktemp('shapes')
    generate_shapes(root, train=IMAGES, val=4, size=(128, 128))
    return root


@pytest.fixture
def cfg(shapes, tmp_path, monkeypatch):
    """The demo's config, with a folder of links to its training images."""
    monkeypatch.setenv('SHAPES_ROOT', str(shapes))
    cfg = Config.fromfile(CONFIG)
    for path in (shapes / 'images' / 'train').iterdir():
        (tmp_path / path.name).symlink_to(path)
    cfg.train_dataloader.dataset.data_prefix.img = f'{tmp_path}/'
    return cfg


def images_of(cfg, most=None, decode=False):
    """The lines on the training images."""
    cfg.val_dataloader = cfg.test_dataloader = None
    cfg.val_evaluator = cfg.test_evaluator = None
    return list(data.check_images(judge(cfg), most, decode))


def test_images(cfg, tmp_path):
    names = sorted(path.name for path in tmp_path.iterdir())
    whole = (tmp_path / names[0]).read_bytes()
    for name in names[:4]:
        (tmp_path / name).unlink()
    (tmp_path / names[1]).write_bytes(whole[: len(whole) // 2])
    (tmp_path / names[2]).write_bytes(b'')
    Image.new('RGB', (128, 64)).save(tmp_path / names[3])
    for decode in (False, True):
        texts = [f.text for f in images_of(cfg, decode=decode)]
        assert texts[0].startswith(
            f'1 of {IMAGES} are not there: {names[0]} (id'
        )
        assert texts[1].startswith(f'2 of {IMAGES} cannot be read: ')
        assert f'{names[1]} (id 1): cut off, after ' in texts[1]
        assert texts[2].endswith('128x64, not 128x128')
        assert len(texts) == 3
    # Six, spread evenly: 0, 4, 8...
    texts = [f.text for f in images_of(cfg, most=6)]
    assert texts == [texts[0]]
    assert texts[0].startswith('1 of 6 are not there')


@pytest.mark.parametrize('kind', ['JPEG', 'PNG', 'TIFF'])
def test_an_image_that_exif_turns(cfg, tmp_path, kind):
    """The pipeline's own option counts."""
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / '000000.png'
    path.unlink()
    Image.new('RGB', (128, 40), 'gray').save(path, kind, exif=exif)
    (finding,) = images_of(cfg)
    assert finding.level == FAIL
    assert '40x128, not 128x128' in finding.text
    if kind == 'TIFF':  # OpenCV turns it whatever it is told
        return
    loading = cfg.train_dataloader.dataset.pipeline[0]
    loading.color_type = 'color_ignore_orientation'
    (finding,) = images_of(cfg)
    assert '128x40, not 128x128' in finding.text


def test_a_square_image_that_exif_turns(cfg, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / '000000.png'
    whole = Image.open(path).convert('RGB')
    path.unlink()
    whole.save(path, exif=exif)
    findings = images_of(cfg)
    assert levels(findings) == [WARN, PASS]
    assert '1 of 24 are turned by an EXIF orientation' in findings[0].text


def test_images_that_the_data_set_leaves_out(cfg, tmp_path):
    """What training does not load need not be there."""
    (tmp_path / '000009.png').unlink()
    assert levels(images_of(cfg)) == [FAIL]
    cfg.train_dataloader.dataset.indices = 9
    assert levels(images_of(cfg)) == [PASS]


def test_no_folder_and_a_loader_of_the_users_own(cfg):
    cfg.train_dataloader.dataset.data_prefix.img = '/no/such'
    (finding,) = images_of(cfg)
    assert finding.text == 'there is no folder /no/such'
    cfg.train_dataloader.dataset.data_prefix.img = '/'
    cfg.train_dataloader.dataset.pipeline[0].type = 'LoadSomehow'
    (finding,) = images_of(cfg)
    assert finding.level == WARN
    assert 'no LoadImageFromFile' in finding.text


def test_data_sets_of_another_kind():
    tiny = Config.fromfile(TINY_CONFIG)
    findings = list(data.check_annotations(tiny, judge(tiny)))
    assert levels(findings) == [WARN]
    assert 'TinyImages with ann_file=None is not checked' in findings[0].text
    assert findings[0].check == 'data set (train, val, test)'


def test_files_that_ranks_compare(cfg, shapes):
    """As tools/dist_doctor.py does: by their content."""
    before = ranks.annotation_files(cfg)
    assert [path.rpartition('_')[2] for path in before] == [
        'train.json',
        'val.json',
    ]
    size = (shapes / 'annotations' / 'instances_train.json').stat().st_size
    assert next(iter(before.values())).startswith(f'{size} bytes, digest ')
    cfg.train_dataloader.dataset.ann_file = '/no/such.json'
    assert ranks.annotation_files(cfg)['/no/such.json'] == 'not there'
