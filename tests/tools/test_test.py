# Copyright (c) mmdet_megdet contributors. All rights reserved.
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from mmdet.engine.hooks import DetVisualizationHook
from mmdet.structures import DetDataSample
from mmdet.visualization import DetLocalVisualizer
from mmengine.config import Config
from mmengine.structures import InstanceData

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


class Samples(list):
    """A data set of these."""

    metainfo = dict(classes=())

    def get_data_info(self, index):
        return dict(img_path=self[index].img_path)


def test_images_of_one_name_are_drawn_beside_each_other(tmp_path):
    """mmdet's hook names files by the image's own name alone."""
    samples = Samples()
    for folder, colour in (('a', 40), ('b', 200)):
        path = tmp_path / 'images' / folder / 'same.png'
        path.parent.mkdir(parents=True)
        cv2.imwrite(str(path), np.full((8, 12, 3), colour, np.uint8))
        samples.append(DetDataSample(metainfo=dict(img_path=str(path))))
        samples[-1].pred_instances = InstanceData(scores=np.zeros(0))
    visualizer = DetLocalVisualizer.get_instance('drawn')
    tool.draw_all(visualizer, samples)
    hook = DetVisualizationHook(draw=True, test_out_dir='drawn')
    runner = SimpleNamespace(work_dir=str(tmp_path), timestamp='now')
    hook.after_test_iter(runner, 0, {}, samples)
    for folder, colour in (('a', 40), ('b', 200)):
        path = tmp_path / 'now' / 'drawn' / folder / 'same.png'
        assert (cv2.imread(str(path)) == colour).all()
