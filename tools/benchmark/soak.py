# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Trains long, killed and resumed now and then: is anything lost or piled up?

A small model with ``MegDetSyncBN`` is trained twice on CPUs with
``tools/dist_train.sh`` and the hooks of the recipe, on batches of random
sizes, empty ones among them. The first time nothing happens. The second time,
at random iterations, a rank gets SIGKILL or every process gets SIGTERM, and
training is started again with ``--resume``. In the end both must have the
same weights, optimizer state, schedules and losses to the bit, and no process
may have grown. The exit status is 1 if that is not so.

Example::

    python tools/benchmark/soak.py --minutes 10 --faults 20 --out soak
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from bench_ranks import positive
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from soak_report import (
    differences,
    growths,
    judge,
    read_samples,
    resource_table,
    run_table,
    verdict,
)
from soak_run import (
    ITERATIONS_PER_EPOCH,
    Fault,
    SoakError,
    Training,
    run_undisturbed,
    run_with_faults,
)

import mmdet_megdet  # noqa: F401  (checkpoints load safely)

NEVER = 1_000_000  # epochs; the clock ends it
RUNS = ('undisturbed', 'with faults')


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        '--minutes',
        type=positive,
        default=10,
        help='of the undisturbed training. The other one goes as far, and '
        'takes some 15 s more for each fault',
    )
    length.add_argument(
        '--iterations',
        type=positive,
        default=argparse.SUPPRESS,
        help='instead of minutes; whole epochs of '
        f'{ITERATIONS_PER_EPOCH} are made of it',
    )
    parser.add_argument('--faults', type=positive, default=10)
    parser.add_argument('--ranks', type=positive, default=2)
    parser.add_argument(
        '--seed', type=int, default=0, help='of training and of the faults'
    )
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('work_dirs', 'soak'),
        help='folder for soak.json, logs and checkpoints; must not be there',
    )
    args = parser.parse_args(argv)
    if args.out.exists():
        parser.error(
            f'--out {args.out} is there already: name another folder, or '
            'remove it, since the trainings are to begin anew.'
        )
    if 'iterations' in args:
        try:
            check_length(args.iterations, args.faults)
        except SoakError as error:
            parser.error(str(error))
    return args


def possible_moments(iterations: int) -> range:
    """Iterations after which a fault may come.

    Not in the last epoch, which may be over before a fault has struck.
    """
    return range(1, iterations - ITERATIONS_PER_EPOCH)


def check_length(iterations: int, faults: int) -> None:
    """Refuse more faults than there is room for.

    Raises:
        SoakError: If there are.
    """
    if faults > len(possible_moments(iterations)):
        raise SoakError(
            f'{iterations} iterations are too few for {faults} faults, of '
            f'which none comes in the last {ITERATIONS_PER_EPOCH}.'
        )


def settings(args: argparse.Namespace) -> dict[str, object]:
    """What both trainings have in common."""
    images = 4 * args.ranks  # at once; soak_config.py's per GPU
    return dict(
        randomness__seed=args.seed,
        train_dataloader__dataset__length=2 * images * ITERATIONS_PER_EPOCH,
        default_hooks__total_batch__total_batch_size=2 * images,
    )


def train_undisturbed(
    args: argparse.Namespace, folder: Path, progress: Progress
) -> tuple[Training, int]:
    """Trains for the time or the iterations asked for.

    Returns:
        tuple[Training, int]: With the number of epochs.
    """
    if 'iterations' in args:
        epochs = -(-args.iterations // ITERATIONS_PER_EPOCH)
        length = dict(train_cfg__max_epochs=epochs)
    else:
        length = dict(
            train_cfg__max_epochs=NEVER,
            default_hooks__soak__seconds=60 * args.minutes,
        )
    training = Training(folder, args.ranks, **settings(args), **length)
    task = progress.add_task('undisturbed', total=args.minutes * 60, done=0)
    begin = time.monotonic()

    def show(done: int) -> None:
        if 'iterations' in args:
            part, total = done, args.iterations
        else:
            part, total = time.monotonic() - begin, args.minutes * 60
        progress.update(task, completed=part, total=total, done=done)

    iterations = run_undisturbed(training, show)
    show(iterations)
    return training, iterations // ITERATIONS_PER_EPOCH


def train_with_faults(
    args: argparse.Namespace, folder: Path, epochs: int, progress: Progress
) -> tuple[Training, list[Fault]]:
    """Trains for as many epochs, with faults; returns those too."""
    iterations = epochs * ITERATIONS_PER_EPOCH
    check_length(iterations, args.faults)
    dice = random.Random(args.seed)
    moments = sorted(dice.sample(possible_moments(iterations), args.faults))
    training = Training(
        folder, args.ranks, **settings(args), train_cfg__max_epochs=epochs
    )
    task = progress.add_task('with faults', total=iterations, done=0)
    faults: list[Fault] = []

    def show(done: int) -> None:
        progress.update(task, completed=done, done=done)

    def tell(fault: Fault) -> None:
        faults.append(fault)
        progress.console.print(
            f'{len(faults)}: {fault}', highlight=False, soft_wrap=True
        )

    run_with_faults(training, moments, dice, show, tell)
    show(iterations)
    return training, faults


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the soak; returns the exit status."""
    args = parse_args(argv)
    console = Console()
    load = os.getloadavg()[0]
    folders = {n: args.out / n.replace(' ', '_') for n in RUNS}
    columns = (
        TextColumn('{task.description}'),
        BarColumn(),
        TextColumn('{task.fields[done]:,} iterations'),
        TimeElapsedColumn(),
    )
    clock = [time.monotonic()]
    try:
        with Progress(*columns, console=console) as progress:
            first, epochs = train_undisturbed(
                args, folders['undisturbed'], progress
            )
            clock.append(time.monotonic())
            second, faults = train_with_faults(
                args, folders['with faults'], epochs, progress
            )
            clock.append(time.monotonic())
    except SoakError as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    name = f'epoch_{epochs}.pth'
    different = differences(*(folder / name for folder in folders.values()))
    samples = {n: read_samples(folder) for n, folder in folders.items()}
    grown = [g for found in samples.values() for g in growths(found)]
    wrong = judge(different, grown, faults)
    result = {
        'run': f'{args.ranks} ranks on CPUs, seed {args.seed}; torch '
        f'{torch.__version__}; load before the run {load:.1f}',
        'iterations': epochs * ITERATIONS_PER_EPOCH,
        'faults': [dataclasses.asdict(fault) for fault in faults],
        'different': different,
        'wrong': wrong,
    }
    for training, name, begin, end in zip(
        (first, second), RUNS, clock[:-1], clock[1:], strict=True
    ):
        result[name] = dict(
            seconds=end - begin,
            starts=training.starts,
            resources={
                rank: [[s._asdict() for s in process] for process in processes]
                for rank, processes in samples[name].items()
            },
        )
    (args.out / 'soak.json').write_text(json.dumps(result, indent=1))
    console.print(resource_table(samples['undisturbed']), run_table(result))
    console.print(verdict(wrong, grown), highlight=False, soft_wrap=True)
    console.print(f'Written to {args.out / "soak.json"}')
    return 1 if wrong else 0


if __name__ == '__main__':
    # An orderly end, which ends the training too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
