# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The norm layer ``MegDetSyncBN``."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from mmengine.registry import MODELS
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import ConfigError
from ..recipe import check_bn_size
from ..upstream.torch_names import (
    in_recomputation,
    inlined_only,
    outside_graphs,
)
from .function import SyncBatchNormFunction
from .groups import bn_group, check_same_layer, world_size
from .kernels import local_moments
from .moments import Running
from .observation import Observation


@MODELS.register_module()
class MegDetSyncBN(_BatchNorm):
    """Cross-GPU batch normalisation with exact statistics, on any device.

    'Synchronised BatchNorm' has no single definition. This one is the
    strict one: in training mode output, input gradient and running
    statistics are those of **one** ``nn.BatchNorm`` that sees the batches of
    all ranks of a BN group concatenated. Each rank weighs in with its number
    of positions, so ranks may have unequal batches, or none, and the
    variance between the ranks' means is part of the variance. (Averaging
    per-rank variances drops that part; it is exact only if all means agree.)
    The statistics are taken in float32 or wider and combined in float64,
    under autocast too.

    One all-reduce of ``2C + 1`` float64 numbers in forward and one of
    ``2C`` in backward, on a process group of the layer's own, whatever the
    number of ranks; no host synchronisation.

    It is plain ``torch.nn.functional.batch_norm``, bit for bit and without
    communication, in eval mode, where no process group is initialised, and
    in BN groups of one rank. An empty batch passes through.

    **BN groups** count images, as in the paper: statistics are taken over
    ``bn_size`` images, which with b images per GPU are those of ``bn_size /
    b`` consecutive ranks. The layer cannot know b. ``SyncBNGroupHook`` tells
    it, or :func:`~mmdet_megdet.sync_bn.resolve_bn_groups` without MMEngine;
    until then training in a distributed run is an error. With several
    groups the running statistics differ from group to group until they are
    pooled, which the hook does before validation and checkpoints.

    What the caller has to see to:

    - All ranks call the same synchronised layers in the same order, forward
      and backward. A rank that leaves one out pairs its collective with
      another layer's, or hangs; nothing can notice that without a host
      synchronisation in every call. That is what ``strict_name`` is for.
    - Gradients of weight and bias are local. DDP averages them.
    - Under activation checkpointing the recomputation repeats the forward
      collective. It does not update the running statistics again.
    - The gradient is differentiable once.

    Args:
        num_features (int): C of an input ``(N, C, *)``: 1d, 2d and 3d
            inputs alike.
        eps (float): Added to the variance. Defaults to 1e-5.
        momentum (float, optional): Weight of the new batch in the running
            statistics; the running variance is the unbiased one over the
            group's count. None takes the cumulative average over all
            batches. Defaults to 0.1.
        affine (bool): Learn weight and bias. Defaults to True.
        track_running_stats (bool): Keep running statistics. Without them
            eval mode normalises by the local batch. Defaults to True.
        bn_size (int, optional): Number of images over which statistics are
            taken. Defaults to None: those of all ranks.

    Attributes:
        ranks_per_group (int or None): Ranks in a BN group, as resolved; None
            stands for all ranks if ``bn_size`` is None, and for 'not
            resolved yet' otherwise.
        strict_name (str or None): For debugging, the name under which every
            call is first compared with the other ranks', at the price of a
            small collective and a host synchronisation. Defaults to None:
            no check. :func:`~mmdet_megdet.sync_bn.resolve_bn_groups` sets it.
        observer (Callable or None): Called in every training forward with an
            :class:`~mmdet_megdet.sync_bn.observation.Observation`, for
            monitoring. It must not communicate or wait for the device. Not
            part of the state dict, and gone in a copy. Defaults to None.

    Raises:
        ConfigError: If ``bn_size`` is no number of images, or not resolved
            when training begins in a distributed run.
        ValueError: If an input has fewer than two dimensions or not
            ``num_features`` channels; without communication, also if a
            training batch has one value per channel, as in ``nn.BatchNorm``.

    Examples:
        >>> norm_cfg = dict(type='MegDetSyncBN', bn_size=32)

    Source: MegDet (Peng et al., CVPR 2018), section 3.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        bn_size: int | None = None,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats
        )
        check_bn_size(bn_size)
        self.bn_size = bn_size
        self.ranks_per_group: int | None = None
        self.strict_name: str | None = None
        self.observer: Callable[[Observation], None] | None = None

    def __getstate__(self) -> dict:
        # The monitor listens to the model that trains, not to its copies.
        return self.__dict__ | dict(observer=None)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` says of the layer."""
        return f'{super().extra_repr()}, bn_size={self.bn_size}'

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ValueError(
                f'MegDetSyncBN({self.num_features}) got an input of shape '
                f'{tuple(input.shape)}; it takes (N, {self.num_features}, *)'
            )

    @inlined_only
    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``input`` of shape ``(N, C, *)``."""
        self._check_input_dim(input)
        if self.training and self._synchronises():
            return self._forward_synced(input)
        if input.numel() == 0:
            output = self._forward_empty(input)
        elif self.training and self.track_running_stats and in_recomputation():
            output = self._forward_recomputed(input)
        else:
            output = super().forward(input)
        if self.training and self.observer is not None:
            self.observer(_observe_alone(input.detach()))
        return output

    def _synchronises(self) -> bool:
        # Plain Python, so that torch.compile can tell as well.
        ranks = world_size()
        if ranks == 1:
            return False
        if self.bn_size is not None and self.ranks_per_group is None:
            raise ConfigError(
                f'bn_size={self.bn_size} counts images, and this layer has '
                'not been told how many each rank sees. Add '
                "default_hooks=dict(sync_bn_group=dict(type='SyncBNGroupHook'"
                ')) to the config, or call resolve_bn_groups(model, '
                'images_per_gpu) before training.'
            )
        return (self.ranks_per_group or ranks) > 1

    # Collectives, kernels and a group that may have to be made: the one
    # break that a layer makes in torch.compile's graphs.
    @outside_graphs
    def _forward_synced(self, input: Tensor) -> Tensor:
        group = bn_group(self.ranks_per_group, input.device)
        assert group is not None
        if self.strict_name is not None:
            check_same_layer(self.strict_name, group, input.device)
        running = None
        if self.track_running_stats and not in_recomputation():
            running = Running(
                cast(Tensor, self.running_mean),
                cast(Tensor, self.running_var),
                cast(Tensor, self.num_batches_tracked),
                self.momentum,
            )
        return SyncBatchNormFunction.apply(
            input,
            self.weight,
            self.bias,
            self.eps,
            running,
            group,
            self.observer,
        )

    def _forward_recomputed(self, input: Tensor) -> Tensor:
        # Clones take the update: checkpointing wants as many tensors saved
        # as the first time, so the buffers cannot just be left out.
        return F.batch_norm(
            input,
            cast(Tensor, self.running_mean).clone(),
            cast(Tensor, self.running_var).clone(),
            self.weight,
            self.bias,
            training=True,
            eps=self.eps,
        )

    def _forward_empty(self, input: Tensor) -> Tensor:
        # PyTorch's native backward divides by the batch's size and, on CPUs,
        # ends the process when that is 0. This keeps zero gradients flowing.
        shape = (1, -1) + (1,) * (input.dim() - 2)
        output = input
        if self.weight is not None:
            output = output * self.weight.view(shape)
        if self.bias is not None:
            output = output + self.bias.view(shape)
        return output.to(input.dtype)


def _observe_alone(x: Tensor) -> Observation:
    count, mean, second = local_moments(x)
    return Observation(
        count,
        mean,
        second,
        group_count=torch.full_like(mean[0], count),
        group_mean=mean,
        group_var=second / max(1, count),
        collectives=[],
        recomputed=in_recomputation(),
    )
