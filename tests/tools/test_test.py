# Copyright (c) mmdet_megdet contributors. All rights reserved.
from types import SimpleNamespace

import pytest
from mmengine.config import Config

from mmdet_megdet.errors import ConfigError
from tools import test as tool

LOAD = dict(type='LoadImageFromFile')
PACK = dict(type='PackDetInputs', meta_keys=('img_id',))


@pytest.mark.parametrize(
    'own', [{}, dict(tta_model=dict(type='Own'), tta_pipeline=[LOAD])]
)
def test_tta(own):
    dataset = dict(type='CocoDataset', pipeline=[LOAD, PACK])
    wrapped = dict(type='RepeatDataset', dataset=dataset)
    model = dict(type='MaskRCNN')
    loader = dict(dataset=wrapped)
    cfg = Config(dict(own, model=model, test_dataloader=loader))
    tool.augment_at_test_time(cfg)
    assert cfg.model.module == model
    load, *more = cfg.test_dataloader.dataset.dataset.pipeline
    assert load == LOAD
    if own:
        assert (cfg.model.type, more) == ('Own', [])
        return
    assert cfg.model.type == 'DetTTAModel'
    assert cfg.model.tta_cfg.nms.iou_threshold == 0.5
    flips, (pack,) = more[0].transforms
    assert [flip.prob for flip in flips] == [1.0, 0.0]
    assert {'flip', 'flip_direction', 'img_id'} <= set(pack.meta_keys)


def test_drawing_needs_its_hook(tmp_path, monkeypatch):
    """mmdet's own refusal is a RuntimeError."""
    monkeypatch.setenv('LOCAL_RANK', '0')
    config, checkpoint = tmp_path / 'a.py', tmp_path / 'a.pth'
    config.write_text('default_hooks = dict()')
    checkpoint.touch()
    with pytest.raises(ConfigError, match='need the hook that draws'):
        tool.main([str(config), str(checkpoint), '--show-dir', 'drawn'])


class Images(list):
    """A data set of images at these paths."""

    def get_data_info(self, index):
        return dict(img_path=self[index])


def test_images_of_one_name_are_drawn_beside_each_other():
    """mmdet's hook names files by the image's own name alone."""
    drawn = {}

    def draw(name, image, *, data_sample, out_file):
        drawn[data_sample.img_path] = out_file

    visualizer = SimpleNamespace(add_datasample=draw)
    paths = Images(['/images/a/same.png', '/images/b/same.png'])
    tool.name_by_folder(visualizer, paths)
    for path in paths:
        visualizer.add_datasample(
            *('test_img', None),
            data_sample=SimpleNamespace(img_path=path),
            out_file='now/drawn/same.png',
        )
    assert [drawn[path] for path in paths] == [
        'now/drawn/a/same.png',
        'now/drawn/b/same.png',
    ]
