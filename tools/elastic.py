# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""torchrun for a training whose machines come and go.

``NNODES=1:2 tools/dist_train.sh CONFIG 8 --resume`` starts it on each machine,
with torchrun's own command line. It refuses, before the machines meet, what
could not go on with fewer or more of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import train
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)

from mmdet_megdet.cli import load_config
from mmdet_megdet.errors import ConfigError, MegDetError
from mmdet_megdet.faults.restart import (
    announce_agent,
    planned_batch,
    would_fail_again,
)
from mmdet_megdet.recipe import images_by_machines
from mmdet_megdet.upstream.torchrun_names import run_torchrun


def read_machines(text: str) -> range:
    """Read ``MIN:MAX``."""
    least, _, most = text.partition(':')
    if not (least.isdecimal() and most.isdecimal()) or not (
        1 <= int(least) <= int(most)
    ):
        raise ConfigError(
            f'NNODES={text} is not MIN:MAX, the least machines with which '
            'training goes on and the most that it takes, such as NNODES=1:2.'
        )
    return range(int(least), int(most) + 1)


def check_training(args: argparse.Namespace) -> dict[int, int]:
    """Check that the training can go on whatever machines there are.

    Args:
        args (argparse.Namespace): torchrun's.

    Returns:
        dict[int, int]: Images per GPU by number of machines.
    """
    machines = read_machines(args.nnodes)
    if Path(args.training_script).name != 'train.py':
        raise ConfigError(
            f'NNODES={args.nnodes} is for training (tools/dist_train.sh): '
            'give one number of machines here.'
        )
    options = train.parse_args(args.training_script_args)
    if options.resume != 'auto':
        given = f'--resume {options.resume}' if options.resume else 'nothing'
        raise ConfigError(
            f'NNODES={args.nnodes} restarts training whenever a machine comes '
            f'or goes, and with {given} it would begin at the same place '
            'each time. Add --resume without a path: that goes on from the '
            'latest checkpoint in the work folder, or begins where there is '
            'none.'
        )
    cfg = load_config(options)
    train.apply_options(cfg, options)
    loop = (cfg.get('train_cfg') or {}).get('type')
    if getattr(loop, '__name__', loop) != 'UpdateTrainLoop':
        raise ConfigError(
            f'NNODES={args.nnodes} needs a training that goes on with another '
            f'number of GPUs, and train_cfg.type is {loop!r}. Set train_cfg='
            "dict(type='UpdateTrainLoop', max_epochs=..., _delete_=True) and "
            "train_dataloader.batch_sampler=dict(type='UpdateBatchSampler')."
        )
    total, bn_sizes = planned_batch(cfg)
    fewer = 'max_images_per_gpu' in options
    images = cfg.train_dataloader.batch_size
    if fewer:
        images = options.max_images_per_gpu
    gpus = int(args.nproc_per_node)
    return images_by_machines(machines, gpus, images, total, bn_sizes, fewer)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run this machine's part of the job; return the exit status."""
    args = run.parse_args(sys.argv[1:] if arguments is None else arguments)
    try:
        images = check_training(args)
    except MegDetError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    for machines, each in images.items():
        gpus = machines * int(args.nproc_per_node)
        print(
            f'elastic: {machines} machine(s) would be {gpus} GPU(s) with '
            f'{each} image(s) each',
            flush=True,
        )
    announce_agent()
    try:
        run_torchrun(args, would_fail_again, say)
    except RendezvousClosedError:
        say(
            'the job has ended, here or on another machine, whose log says '
            'why; this one ends too'
        )
    except RendezvousConnectionError:
        say(
            f'the rendezvous at {args.rdzv_endpoint} does not answer: the '
            'machine that holds it has ended (its log says why), left, or '
            'cannot be reached. Start the job there first, then here; it goes '
            'on from its latest checkpoint'
        )
    except SignalException as stop:
        say(f'got {stop.sigval.name}: this machine leaves the job')
    except RendezvousTimeoutError:
        say(
            f'the {args.nnodes.split(":")[0]} machine(s) without which '
            f'NNODES={args.nnodes} does not train did not come in time'
        )
    else:
        return 0
    return 1


def say(text: str) -> None:
    """Print a line of the log."""
    print(f'elastic: {text}', file=sys.stderr, flush=True)


if __name__ == '__main__':
    sys.exit(main())
