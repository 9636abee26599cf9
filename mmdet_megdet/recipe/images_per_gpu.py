# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Which numbers of images per GPU a total batch can be had from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import ConfigError
from .plan import BatchPlan, PlanError, divisors, group_ranks


def most_images(
    world_size: int,
    at_most: int,
    total_batch_size: int,
    bn_sizes: Sequence[int | None] = (None,),
) -> int | None:
    """Find the most images per GPU of which a total batch can be made.

    Args:
        world_size (int): Number of GPUs, one rank each.
        at_most (int): Images that fit a GPU.
        total_batch_size (int): Images of an optimizer update.
        bn_sizes (Sequence): Images over which BatchNorm takes its
            statistics, where layers differ several; None stands for those of
            all ranks. Defaults to that alone.

    Returns:
        int, optional: A number with which a :class:`BatchPlan` can be made
        for each BN size; None where there is none.

    Examples:
        >>> most_images(8, 12, 256, [32])
        8
        >>> most_images(6, 12, 256, [32]) is None
        True
    """
    each, rest = divmod(total_batch_size, world_size)
    if rest:
        return None
    return max(
        (
            images
            for images in divisors(each)
            if images <= at_most
            and None
            not in [group_ranks(s, images, world_size) for s in bn_sizes]
        ),
        default=None,
    )


def plan_with_fewer_images(plan: BatchPlan) -> BatchPlan | None:
    """Return the plan that needs less memory and changes training least.

    The total batch stays. So does the BN size where that can be; where it
    cannot, because fewer images at once do not hold it, it is the largest
    that is left.

    Args:
        plan (BatchPlan): The plan that does not fit.

    Returns:
        BatchPlan, optional: With the most images per GPU below the plan's
        that divide, those which keep the BN size first; None where it is one
        image already.

    Examples:
        >>> plan_with_fewer_images(BatchPlan(8, 4, 256, bn_size=16))
        BatchPlan(world_size=8, images_per_gpu=2, total_batch_size=256, \
bn_size=16)
    """
    world_size, total = plan.world_size, plan.total_batch_size
    for bn_size in (plan.bn_size, None):
        images = most_images(
            world_size, plan.images_per_gpu - 1, total, [bn_size]
        )
        if images is not None:
            return BatchPlan(world_size, images, total, bn_size)
    return None


class MachinesError(ConfigError):
    """Numbers of machines on which a batch cannot be split."""


def images_by_machines(
    machines: range,
    gpus: int,
    images: int,
    total_batch_size: int,
    bn_sizes: Sequence[int | None] = (None,),
    fewer: bool = False,
) -> dict[int, int]:
    """Find the images per GPU for each number of machines of a job.

    Args:
        machines (range): The numbers.
        gpus (int): GPUs of each machine.
        images (int): Images that each GPU takes at once.
        total_batch_size (int): Images of an optimizer update.
        bn_sizes (Sequence): As :func:`most_images` takes them.
        fewer (bool): Whether a GPU takes the most below ``images`` that
            divide where ``images`` do not. Defaults to False.

    Returns:
        dict[int, int]: Images per GPU by number of machines.

    Raises:
        MachinesError: If there are numbers without. It names all of them,
            why, and what would run.

    Examples:
        >>> images_by_machines(range(1, 3), 8, 12, 256, [32], fewer=True)
        {1: 8, 2: 8}
    """
    most = {
        number: most_images(number * gpus, images, total_batch_size, bn_sizes)
        for number in machines
    }
    found, problems = {}, {}
    for number in machines:
        chosen = (fewer and most[number]) or images
        try:
            for bn_size in bn_sizes:
                BatchPlan(number * gpus, chosen, total_batch_size, bn_size)
        except PlanError as error:
            problems[number] = '; and '.join(error.problems)
        else:
            found[number] = chosen
    if not problems:
        return found
    ways = [f'NNODES={first}:{last}' for first, last in _runs(found)]
    if not fewer and all(most.values()):
        ways.insert(
            0,
            f'--max-images-per-gpu {images} (in the place of '
            '--images-per-gpu), which takes fewer where so many do not divide',
        )
    names = '; '.join(f'{n} machine(s): {why}' for n, why in problems.items())
    raise MachinesError(
        f'NNODES={machines[0]}:{machines[-1]} with {gpus} GPU(s) each would '
        f'have numbers of machines that cannot run: {names}. Nothing is '
        'rounded. What would run: '
        f'{"; or ".join([*ways, "see tools/plan.py"])}.'
    )


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    """First and last of consecutive numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def aspect_ratio_note(images_on_rank: int, images_per_gpu: int) -> str | None:
    """Say where mmdet's stock batches would differ in number by rank.

    ``AspectRatioBatchSampler(drop_last=True)`` (mmdet 3.3.0) joins what
    remains of portraits and of landscapes, and drops it also where that is a
    full batch. A rank has such a remainder only if its images are a whole
    number of batches, and not every rank has it then.

    Args:
        images_on_rank (int): Images of each rank in an epoch.
        images_per_gpu (int): Images that each rank sees at once.

    Returns:
        str, optional: The note, with a remedy, which holds where there are
        portraits and landscapes; None where nothing is wrong.
    """
    # A batch of one is full at once, and leaves no remainder.
    if images_per_gpu == 1 or images_on_rank % images_per_gpu:
        return None
    return (
        f'each rank has {images_on_rank} images an epoch, a whole number of '
        f'batches of {images_per_gpu}. AspectRatioBatchSampler('
        'drop_last=True) then leaves out one full batch on those ranks where '
        'portraits and landscapes fill it only together: ranks would make '
        'different numbers of iterations, and their collectives would not '
        "meet. Set train_cfg.type='UpdateTrainLoop' and "
        "train_dataloader.batch_sampler=dict(type='UpdateBatchSampler'), or "
        'change the images per GPU or their number. (Images of one '
        'orientation alone are no problem.)'
    )
