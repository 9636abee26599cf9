# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""BatchPlan: what the optimizer and BatchNorm see on given hardware."""

from __future__ import annotations

from dataclasses import dataclass

from .bn_groups import check_bn_size, ranks_per_group
from .nearest import changed, nearest_splits
from .split import Split

LINEAR_RULE = (
    'The linear rule multiplies the learning rate by the same factor as the '
    'batch. MegDet (section 3) derives it from an assumption weaker than the '
    'usual one: not that the gradients of the k small batches which a large '
    'one replaces are equal, but that their variance is. k steps with rate r '
    'then scatter as much as one step with k r. It is an assumption: check '
    'the loss of the first epochs.'
)


class PlanError(ValueError):
    """A batch that cannot be split so, and what could be run instead.

    Attributes:
        problems (list[str]): Why not.
        asked (Split): The numbers that were asked for.
        nearest (list[Split]): Splits that can be, least changed first.
    """

    def __init__(self, problems: list[str], asked: Split) -> None:
        super().__init__(problems, asked)
        self.problems = problems
        self.asked = asked
        self.nearest = nearest_splits(asked)

    def explain(self, total_option: str = '--total-batch {}') -> str:
        """The problems, and the options with which it would run.

        Args:
            total_option (str): How the user sets the total batch size, with
                ``{}`` for the number.
        """
        options = dict(
            images_per_gpu='--images-per-gpu {}',
            bn_size='--bn-size {}',
            total_batch_size=total_option,
            world_size='on {} GPU(s)',
        )
        ways = []
        for split in self.nearest:
            names = changed(self.asked, split)
            ways.append(
                ' '.join(
                    text.format(getattr(split, name))
                    for name, text in options.items()
                    if name in names
                )
            )
        return (
            f'{"; and ".join(self.problems)}. Nothing is rounded. What would '
            f'run, least changed first: {"; or ".join(ways)}.'
        )

    def __str__(self) -> str:
        return self.explain()


@dataclass(frozen=True)
class BatchPlan:
    """A batch of ``total_batch_size`` images on given hardware.

    Contract: a plan that exists multiplies out. ``world_size *
    images_per_gpu * accumulation == total_batch_size``, and the ranks split
    into BN groups that hold ``bn_size`` images each. What does not divide is
    refused when the plan is made; nothing is rounded.

    Args:
        world_size (int): Number of GPUs, one rank each.
        images_per_gpu (int): Images that each rank sees at once.
        total_batch_size (int): Images of an optimizer update. Defaults to
            256, MegDet's.
        bn_size (int, optional): Images over which BatchNorm takes its
            statistics; None stands for those of all ranks. Defaults to None.

    Raises:
        PlanError: If the numbers do not divide, with the nearest that do.
        ValueError: If a number is not a positive int.

    Examples:
        >>> plan = BatchPlan(8, 4, total_batch_size=256, bn_size=32)
        >>> plan.accumulation, plan.ranks_per_bn_group
        (8, 8)
        >>> plan.iterations(updates=1000)
        8000
    """

    world_size: int
    images_per_gpu: int
    total_batch_size: int = 256
    bn_size: int | None = None

    def __post_init__(self) -> None:
        for name in ('world_size', 'images_per_gpu', 'total_batch_size'):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f'{name}={value!r} must be a positive int.')
        check_bn_size(self.bn_size)
        split = Split(
            self.world_size,
            self.images_per_gpu,
            self.total_batch_size,
            self.bn_size,
        )
        problems = split.problems()
        if problems:
            raise PlanError(problems, split)

    @property
    def images_at_once(self) -> int:
        """Images of all ranks in one iteration."""
        return self.world_size * self.images_per_gpu

    @property
    def accumulation(self) -> int:
        """Iterations of an optimizer update (``accumulative_counts``)."""
        return self.total_batch_size // self.images_at_once

    @property
    def ranks_per_bn_group(self) -> int:
        """Consecutive ranks that share BatchNorm's statistics; 1: local."""
        return ranks_per_group(
            self.bn_size, self.images_per_gpu, self.world_size
        )

    @property
    def images_per_bn_group(self) -> int:
        """``bn_size``, with a number for None."""
        return self.ranks_per_bn_group * self.images_per_gpu

    def iterations(self, updates: int) -> int:
        """Iterations that make this many optimizer updates."""
        return updates * self.accumulation

    def learning_rate(self, base_lr: float, base_batch_size: int) -> float:
        """The learning rate by the linear rule (see ``LINEAR_RULE``).

        Args:
            base_lr (float): A learning rate that is known to work...
            base_batch_size (int): ...with this number of images an update.
        """
        return base_lr * self.total_batch_size / base_batch_size
