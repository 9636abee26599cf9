# Copyright (c) mmdet_megdet contributors. All rights reserved.
import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from mmdet.models import FreeAnchorRetinaHead, RetinaHead, RPNHead
from mmengine.registry import DefaultScope
from torch import nn

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.hooks import UnitLossHook
from mmdet_megdet.sync_bn import MegDetSyncBN


class OwnSum(RetinaHead):
    def loss_by_feat_single(self, *args, **kwargs):
        """Might leave a loss out."""


NO_HEAD = 'default_hooks.unit_loss=None'
NO_BN = "type='UnitLossHook', images=32"
# Of four images per GPU there are no units of six.
NO_UNIT = 'bn_size=6 cannot be had from 1 rank(s) with 4 image(s)'


@pytest.mark.parametrize(('bn_size', 'kind', 'told'), [
    (4, RPNHead, None), (4, RetinaHead, None), (4, OwnSum, NO_HEAD),
    (4, FreeAnchorRetinaHead, NO_HEAD), (0, RPNHead, NO_BN),
    (6, RPNHead, NO_UNIT),
])  # fmt: skip
def test_what_can_be_normalised(bn_size, kind, told):
    with DefaultScope.overwrite_default_scope('mmdet'):
        head = kind(num_classes=1, in_channels=4, feat_channels=32)
    model = nn.Sequential(head)
    if bn_size:
        model.append(MegDetSyncBN(4, bn_size=bn_size))
    loader = SimpleNamespace(batch_size=4)
    runner = SimpleNamespace(
        model=model, train_dataloader=loader, world_size=1
    )
    told = told and re.escape(told)
    with pytest.raises(ConfigError, match=told) if told else nullcontext():
        UnitLossHook().before_train(runner)
    assert bool(head.loss_cls._forward_pre_hooks) == (told is None)
