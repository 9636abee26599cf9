# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What a config's training would do on the ranks of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mmdet_megdet.recipe import ranks_per_group

from . import cost, model, plan
from .report import Finding, failure, reason


@dataclass
class Training:
    """The part of a training that ranks have to do with each other.

    Attributes:
        world_size (int): Ranks of the run.
        images (int, optional): Images per GPU, where that is known.
        findings (list[Finding]): Of the model and the batch plan.
        layers (list[Layer]): Layers that synchronise.
        bn_size (int, optional): Images of BatchNorm's statistics where there
            is no config to ask; None: those of all ranks.
    """

    world_size: int
    images: int | None = None
    findings: list[Finding] = field(default_factory=list)
    layers: list[cost.Layer] = field(default_factory=list)
    bn_size: int | None = None

    def ranks(self, bn_size: int | None) -> int | None:
        """Ranks of a BN group; None where they cannot be split so."""
        if bn_size is None:
            return self.world_size
        if self.images is None:
            return None
        try:
            return ranks_per_group(bn_size, self.images, self.world_size)
        except ValueError:
            return None

    def group_sizes(self) -> list[int]:
        """The different numbers of ranks in a BN group."""
        sizes = [layer.bn_size for layer in self.layers] or [self.bn_size]
        found = {self.ranks(size) for size in sizes}
        return sorted(found - {None})

    def layers_of(self, ranks: int) -> list[cost.Layer]:
        """The layers whose groups have this many ranks."""
        return [e for e in self.layers if self.ranks(e.bn_size) == ranks]


def read_training(cfg: Any, world_size: int) -> Training:
    """Build the config's model and ask it.

    Only rank 0 does, so nothing that goes wrong may keep it from the others.

    Args:
        cfg (Config): With the images per GPU and the BN size of the run.
        world_size (int): Its ranks.
    """
    training = Training(world_size)
    try:
        loader = cfg.get('train_dataloader') or {}
        training.images = loader.get('batch_size')
        built = model.build_model(cfg)
        hook = model.find_hook(cfg, 'SyncBNGroupHook') or {}
        override = hook.get('bn_size', 'layers')
        training.layers = cost.synced_layers(built, override)
        training.findings += [
            *model.check_batch_norm(built),
            *plan.check_plan(cfg, built, world_size, None),
        ]
    except Exception as error:
        training.findings.append(
            failure(
                'model',
                f'cannot be built or asked: {reason(error)}',
                'tools/doctor.py CONFIG says more.',
            )
        )
    return training
