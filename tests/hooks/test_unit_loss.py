# Copyright (c) mmdet_megdet contributors. All rights reserved.
from types import SimpleNamespace

import pytest
from mmdet.models import ATSSHead, Shared2FCBBoxHead
from mmdet.models.dense_heads import RetinaHead, RPNHead
from mmengine.registry import DefaultScope
from torch import nn

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.hooks import UnitLossHook
from mmdet_megdet.hooks.unit_loss import _adds_up_as_anchor_head
from mmdet_megdet.sync_bn import MegDetSyncBN

HEAD = dict(num_classes=2, in_channels=4, feat_channels=32)


@pytest.fixture(autouse=True)
def scope():
    with DefaultScope.overwrite_default_scope('mmdet'):
        yield


class OwnSum(RetinaHead):
    def loss_by_feat_single(self, *args, **kwargs):
        """Might leave a loss out."""


def refusal(*modules, **options):
    runner = SimpleNamespace(
        model=nn.Sequential(*modules),
        train_dataloader=SimpleNamespace(batch_size=4),
        world_size=1,
    )
    with pytest.raises(ConfigError) as found:
        UnitLossHook(**options).before_train(runner)
    return str(found.value)


def test_heads():
    rpn = {k: v for k, v in HEAD.items() if k != 'num_classes'}
    for head in (RetinaHead(**HEAD), RPNHead(**rpn)):
        assert _adds_up_as_anchor_head(head)
    box_head = Shared2FCBBoxHead(num_classes=2, fc_out_channels=4)
    for head in (OwnSum(**HEAD), ATSSHead(**HEAD), box_head):
        assert not _adds_up_as_anchor_head(head)


def test_what_cannot_be_normalised():
    norm = MegDetSyncBN(4, bn_size=6)
    assert 'default_hooks.unit_loss=None' in refusal(norm, ATSSHead(**HEAD))
    told = refusal(RetinaHead(**HEAD))
    assert "type='UnitLossHook', images=32" in told
    # Of four images per GPU there are no units of six.
    told = refusal(norm, RetinaHead(**HEAD))
    assert 'bn_size=6 cannot be had from 1 rank(s) with 4 image(s)' in told
