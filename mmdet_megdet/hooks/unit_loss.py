# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Losses that divide by the count of a BN unit instead of a rank's own."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import nn

from ..errors import ConfigError
from ..recipe import ranks_per_group
from ..runtime import images_per_gpu
from ..sync_bn import bn_group, bn_sizes


@HOOKS.register_module()
class UnitLossHook(Hook):
    """Normalise an anchor head's losses over a BN unit, alike on any hardware.

    mmdet's anchor heads (RetinaNet's, the region proposal network's) divide
    the sum of a loss over a rank's images by that rank's count of anchors, so
    32 images come to another loss on 8 ranks of 4 than on 4 ranks of 8. Here
    the ``avg_factor`` that a loss is given becomes the mean over the ranks
    that hold a unit of images, by a small all-reduce. Only heads that call
    each loss in each forward, as ``AnchorHead`` does, are changed: a rank
    would wait for one that does not.

    Args:
        images (int, optional): Images of a unit. Defaults to None, the
            largest BN size of the model.

    Attributes:
        ranks (int): Consecutive ranks of a unit; known once training begins.

    Examples:
        >>> default_hooks = dict(unit_loss=dict(type='UnitLossHook'))
    """

    # Behind SyncBNGroupHook, which may set the BN size.
    priority = 'LOW'

    def __init__(self, images: int | None = None) -> None:
        self.images = images
        self.ranks = 1

    def before_train(self, runner: Runner) -> None:
        """Find the heads, and the ranks of a unit."""
        heads = [
            (name, module)
            for name, module in runner.model.named_modules()
            if _adds_up_as_anchor_head(module)
        ]
        if not heads:
            raise ConfigError(
                'UnitLossHook found no head that adds up its losses as '
                "mmdet's AnchorHead does (RetinaHead, RPNHead). Remove it: "
                'default_hooks.unit_loss=None.'
            )
        images = self.images or _bn_size(runner.model)
        each = images_per_gpu(runner.train_dataloader)
        self.ranks = ranks_per_group(images, each, runner.world_size)
        self._device = next(runner.model.parameters()).device
        self._group = bn_group(self.ranks, self._device)
        for name, head in heads:
            for loss in (head.loss_cls, head.loss_bbox):
                loss.register_forward_pre_hook(
                    self._average_factor, with_kwargs=True
                )
            print_log(
                f'UnitLossHook: losses of {name} are normalised over '
                f'{self.ranks * each} images.',
                logger='current',
            )

    def _average_factor(
        self, module: nn.Module, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[tuple, dict[str, Any]]:
        if self._group is None:
            return args, kwargs
        factor = torch.as_tensor(
            kwargs['avg_factor'], dtype=torch.float64, device=self._device
        ).clone()
        dist.all_reduce(factor, group=self._group)
        factor /= self._group.size()
        # In the type in which the loss is computed.
        dtype = torch.promote_types(args[0].dtype, torch.float32)
        return args, kwargs | dict(avg_factor=factor.to(dtype))


def _adds_up_as_anchor_head(module: nn.Module) -> bool:
    # Nothing else of this package's hooks needs mmdet.
    from mmdet.models.dense_heads import AnchorHead, RPNHead

    kind: Any = type(module)
    return (
        isinstance(module, AnchorHead)
        and kind.loss_by_feat_single is AnchorHead.loss_by_feat_single
        and kind.loss_by_feat
        in (AnchorHead.loss_by_feat, RPNHead.loss_by_feat)
    )


def _bn_size(model: nn.Module) -> int | None:
    sizes = bn_sizes(model)
    if not sizes:
        raise ConfigError(
            'UnitLossHook normalises over the images of BatchNorm, but the '
            'model has no MegDetSyncBN. Say their number: '
            "dict(type='UnitLossHook', images=32)."
        )
    numbers = [size for size in sizes if size is not None]
    return max(numbers) if len(numbers) == len(sizes) else None
