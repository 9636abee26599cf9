# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The norm layer ``MegDetSyncBN``."""

from __future__ import annotations

from collections.abc import Callable

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
from .moments import Running
from .observation import Observation


@MODELS.register_module()
class MegDetSyncBN(_BatchNorm):
    """Cross-GPU batch normalisation with exact statistics, on any device.

    In training mode output, input gradient and running statistics are those
    of **one** ``nn.BatchNorm`` that sees the batches of all ranks of a BN
    group concatenated, whatever each rank's share, none included, by one
    all-reduce in forward and one in backward. ``docs/sync_bn.md`` has the
    mathematics and what a caller has to see to: above all, that all ranks
    call the same layers in the same order.

    It is plain ``torch.nn.functional.batch_norm``, bit for bit and without
    communication, in eval mode, where no process group is initialised, and
    in BN groups of one rank. An empty batch passes through.

    Args:
        num_features (int): C of an input ``(N, C, *)``: 1d, 2d and 3d
            inputs alike.
        eps (float): As in ``nn.BatchNorm2d``, and so are the next three.
        momentum (float, optional): Weight of a new batch. Defaults to 0.1.
        affine (bool): Learn weight and bias. Defaults to True.
        track_running_stats (bool): Keep running statistics. Defaults to True.
        bn_size (int, optional): Number of images over which statistics are
            taken: with b images per GPU, those of ``bn_size / b`` consecutive
            ranks. ``SyncBNGroupHook`` or ``resolve_bn_groups`` tells the
            layer b; until then training in a distributed run is an error.
            Defaults to None: the images of all ranks.

    Attributes:
        ranks_per_group (int or None): Ranks in a BN group, as resolved. None:
            all ranks if ``bn_size`` is None, not resolved yet otherwise.
        strict_name (str or None): For debugging, the name under which every
            call is first compared with the other ranks'.
        observer (Callable or None): Called in every training forward with an
            :class:`~mmdet_megdet.sync_bn.Observation`. It must not
            communicate or wait for the device. Gone in a copy.

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
            self.observer(Observation.alone(input))
        return output

    def _synchronises(self) -> bool:
        # Plain Python, so that torch.compile can tell as well.
        ranks = world_size()
        if ranks == 1:
            return False
        if self.bn_size is not None and self.ranks_per_group is None:
            raise ConfigError(
                f'bn_size={self.bn_size} counts images, and how many each '
                'rank sees is not known. Add SyncBNGroupHook to default_hooks'
                ', or call resolve_bn_groups(model, images_per_gpu).'
            )
        return (self.ranks_per_group or ranks) > 1

    # Collectives, kernels and a group that may have to be made: the one
    # break that a layer makes in torch.compile's graphs.
    @outside_graphs
    def _forward_synced(self, input: Tensor) -> Tensor:
        group = bn_group(self.ranks_per_group, input.device)
        assert group is not None
        if self.strict_name is not None:
            check_same_layer(self.strict_name, group)
        running = None
        if self.track_running_stats and not in_recomputation():
            mean, var, batches = self._running_stats()
            running = Running(mean, var, batches, self.momentum)
        affine = self.weight, self.bias
        return SyncBatchNormFunction.apply(
            input, *affine, self.eps, running, group, self.observer
        )

    def _running_stats(self) -> list[Tensor]:
        names = 'running_mean', 'running_var', 'num_batches_tracked'
        return [getattr(self, name) for name in names]

    def _forward_recomputed(self, input: Tensor) -> Tensor:
        # Clones take the update: checkpointing wants as many tensors saved
        # as the first time, so the buffers cannot just be left out.
        mean, var, _ = (kept.clone() for kept in self._running_stats())
        affine = self.weight, self.bias
        return F.batch_norm(input, mean, var, *affine, True, 0.0, self.eps)

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
