# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Find images per GPU from which a total batch can be made."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigError
from ..text import runs
from .plan import BatchPlan, PlanError, divisors, group_ranks


def most_images(
    world_size: int,
    at_most: int,
    total_batch_size: int,
    bn_sizes: Sequence[int | None] = (None,),
) -> int | None:
    """Find the most images per GPU of which a total batch can be made.

    With it a :class:`BatchPlan` can be made for each BN size (layers may
    differ); None where there is no such number.

    Examples:
        >>> most_images(8, 12, 256, [32])
        8
    """
    each, rest = divmod(total_batch_size, world_size)
    if rest:
        return None
    return max(
        (
            images
            for images in divisors(each)
            if images <= at_most
            and all(group_ranks(s, images, world_size) for s in bn_sizes)
        ),
        default=None,
    )


def plan_with_fewer_images(plan: BatchPlan) -> BatchPlan | None:
    """Return the plan that needs less memory and changes training least.

    With the most images per GPU below the plan's; None where it is one image
    already. The total batch stays. So does the BN size where that can be;
    where fewer images at once do not hold it, it is the largest that is left.
    """
    world_size, total = plan.world_size, plan.total_batch_size
    for bn_size in (plan.bn_size, None):
        images = most_images(
            world_size, plan.images_per_gpu - 1, total, [bn_size]
        )
        if images is not None:
            return BatchPlan(world_size, images, total, bn_size)
    return None


def images_by_machines(
    machines: range,
    gpus: int,
    images: int,
    total_batch_size: int,
    bn_sizes: Sequence[int | None] = (None,),
    fewer: bool = False,
) -> dict[int, int]:
    """Find the images per GPU for each number of machines of a job.

    Each machine has ``gpus`` of them, and each GPU takes ``images``; with
    ``fewer``, the most below that divide where those do not. Where there are
    numbers without, a ConfigError names all of them, why, and what would run.
    """
    most = {
        number: most_images(number * gpus, images, total_batch_size, bn_sizes)
        for number in machines
    }
    found, problems = {}, []
    for number in machines:
        chosen = (fewer and most[number]) or images
        try:
            for bn_size in bn_sizes:
                BatchPlan(number * gpus, chosen, total_batch_size, bn_size)
        except PlanError as error:
            why = '; and '.join(error.problems)
            problems.append(f'{number} machine(s): {why}')
        else:
            found[number] = chosen
    if not problems:
        return found
    ways = [f'NNODES={run[0]}:{run[-1]}' for run in runs(found)]
    ways.append('see tools/plan.py')
    if not fewer and all(most.values()):
        ways.insert(
            0,
            f'--max-images-per-gpu {images} (in the place of '
            '--images-per-gpu), which takes fewer where so many do not divide',
        )
    raise ConfigError(
        f'NNODES={machines[0]}:{machines[-1]} with {gpus} GPU(s) each would '
        f'have numbers of machines that cannot run: {"; ".join(problems)}. '
        f'Nothing is rounded. What would run: {"; or ".join(ways)}.'
    )


def aspect_ratio_note(images_on_rank: int, images_per_gpu: int) -> str | None:
    """Say where mmdet's batches by orientation would differ by rank.

    ``AspectRatioBatchSampler(drop_last=True)`` (mmdet 3.3.0) drops what
    remains of portraits and landscapes together also where that is a full
    batch: on some ranks, if each has a whole number of batches.
    """
    # A batch of one is full at once, and leaves no remainder.
    if images_per_gpu == 1 or images_on_rank % images_per_gpu:
        return None
    return (
        f'each rank has {images_on_rank} images an epoch, a whole number of '
        f'batches of {images_per_gpu}. AspectRatioBatchSampler('
        'drop_last=True) then leaves out one full batch on those ranks where '
        'portraits and landscapes fill it only together, and the collectives '
        "of the ranks would not meet. Set train_cfg.type='UpdateTrainLoop' "
        "and train_dataloader.batch_sampler=dict(type='UpdateBatchSampler'), "
        'or change the images per GPU or their number.'
    )
