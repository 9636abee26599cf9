# Copyright (c) mmdet_megdet contributors. All rights reserved.
import re
from types import SimpleNamespace

import pytest
from mmdet.models import ATSSHead, Shared2FCBBoxHead
from mmdet.models.dense_heads import RetinaHead, RPNHead
from mmengine.registry import DefaultScope
from torch import nn

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.hooks import UnitLossHook
from mmdet_megdet.sync_bn import MegDetSyncBN

HEAD = dict(in_channels=4, feat_channels=32)
NO_HEAD = 'default_hooks.unit_loss=None'


class OwnSum(RetinaHead):
    def loss_by_feat_single(self, *args, **kwargs):
        """Might leave a loss out."""


@pytest.mark.parametrize(
    ('bn_size', 'head', 'settings', 'told'),
    [
        (4, RPNHead, HEAD, None),
        (4, RetinaHead, dict(HEAD, num_classes=2), None),
        (4, OwnSum, dict(HEAD, num_classes=2), NO_HEAD),
        (4, ATSSHead, dict(HEAD, num_classes=2), NO_HEAD),
        (4, Shared2FCBBoxHead, dict(fc_out_channels=4), NO_HEAD),
        (0, RPNHead, HEAD, "type='UnitLossHook', images=32"),
        # Of four images per GPU there are no units of six.
        (6, RPNHead, HEAD,
         'bn_size=6 cannot be had from 1 rank(s) with 4 image(s)'),
    ],
)  # fmt: skip
def test_what_can_be_normalised(bn_size, head, settings, told):
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = nn.Sequential(head(**settings))
    if bn_size:
        model.append(MegDetSyncBN(4, bn_size=bn_size))
    loader = SimpleNamespace(batch_size=4)
    runner = SimpleNamespace(
        model=model, train_dataloader=loader, world_size=1
    )
    if told is None:
        UnitLossHook().before_train(runner)
        assert model[0].loss_cls._forward_pre_hooks
    else:
        with pytest.raises(ConfigError, match=re.escape(told)):
            UnitLossHook().before_train(runner)
