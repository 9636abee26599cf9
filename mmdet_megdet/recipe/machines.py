# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A batch on each number of machines that a job may have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .plan import BatchPlan, PlanError, most_images


class MachinesError(ValueError):
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
    found, problems = {}, {}
    for number in machines:
        world_size, chosen = number * gpus, images
        if fewer:
            chosen = (
                most_images(world_size, images, total_batch_size, bn_sizes)
                or images
            )
        try:
            for bn_size in bn_sizes:
                BatchPlan(world_size, chosen, total_batch_size, bn_size)
        except PlanError as error:
            problems[number] = '; and '.join(error.problems)
        else:
            found[number] = chosen
    if not problems:
        return found
    ways = [f'NNODES={first}:{last}' for first, last in _runs(found)]
    if not fewer and all(
        most_images(number * gpus, images, total_batch_size, bn_sizes)
        for number in machines
    ):
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
