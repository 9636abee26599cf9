# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The common part of ``tools/train.py`` and ``tools/test.py``."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch.distributed as dist
from mmengine.config import Config, DictAction
from mmengine.dist import is_main_process
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from torch.distributed.elastic.multiprocessing import errors as elastic

from . import errors, faults, runtime


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that mmdet's train and test tools share, and ours."""
    add = parser.add_argument
    add('--work-dir', help='folder for logs and results')
    add(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        help='settings that override the config, as key=value; lists as '
        'key="[a,b]" or key=a,b, nested ones as key="[(a,b),(c,d)]", without '
        'white space',
    )
    add(
        '--launcher',
        choices=['none', 'pytorch', 'slurm'],
        default='none',
        help='what started the processes of a distributed run',
    )
    local = 'for launchers that do not set LOCAL_RANK'
    add('--local_rank', '--local-rank', type=int, default=0, help=local)
    add(
        '--trust-checkpoint',
        action='store_true',
        help='unpickle whatever the checkpoints of this run hold; such a '
        'file can run any code, so only for files whose origin you trust',
    )


def load_config(args: argparse.Namespace) -> Config:
    """Read the config and apply the common options."""
    if not Path(args.config).is_file():
        raise errors.ConfigError(f'there is no config file {args.config}')
    if args.trust_checkpoint:
        runtime.trust_checkpoints()
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    cfg = Config.fromfile(args.config)
    cfg.launcher = args.launcher
    if args.cfg_options is not None:
        cfg.merge_from_dict(args.cfg_options)
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = str(Path('work_dirs', Path(args.config).stem))
    return cfg


def require_checkpoint(path: str) -> str:
    """Return the path or address of a checkpoint, if it is there."""
    if '://' not in path and not Path(path).expanduser().is_file():
        raise errors.CheckpointError(f'there is no checkpoint {path}')
    return path


def join(cfg: Config) -> int:
    """Join the distributed run of a config, and return the world size."""
    return runtime.init_distributed(cfg.launcher, cfg.get('env_cfg'))


def judge_annotations(
    cfg: Config, roles: Sequence[str] = ('train', 'val')
) -> None:
    """Judge the annotation files before anything is built; a collective.

    What does not stop the run is printed, unless DataCheckHook will log it.
    """
    said = faults.check_annotation_files(cfg, roles)
    logged = 'train' in roles and runtime.find_hook(cfg, 'DataCheckHook')
    if is_main_process() and not logged:
        for verdict in said:
            print(f'warning: {verdict.text} {verdict.remedy}', file=sys.stderr)


def build_runner(cfg: Config) -> Runner:
    """Build the runner, if all ranks have the same config and versions."""
    faults.check_same_run(cfg)
    cfg = runtime.adapt_config(cfg)
    if 'runner_type' in cfg:
        return RUNNERS.build(cfg)
    return Runner.from_cfg(cfg)


def run_tool(main: Callable[[], None]) -> None:
    """Run a tool's main function and end the process properly.

    A :class:`MegDetError` is printed as one message, anything else with its
    traceback, and torchrun's summary shows it; the exit status is 1, 69 where
    the error may be the consequence of another rank's end, or 75 where
    training was preempted. After an error in a distributed run the process
    exits at once: an orderly exit waits for collectives that the other ranks
    will never join.
    """
    status = 1
    try:
        main()
    except errors.Preempted:
        status = errors.REQUEUE_STATUS
    except errors.MegDetError as error:
        print(f'error: {error}', file=sys.stderr)
        elastic.get_error_handler().record_exception(error)
    except (Exception, KeyboardInterrupt) as error:
        traceback.print_exc()
        elastic.get_error_handler().record_exception(error)
        if faults.is_collective_error(error):
            status = errors.RANK_LOST_STATUS
    else:
        if dist.is_initialized():
            # The runner and its model are in reference cycles and hold the
            # process groups, whose threads must not outlive the interpreter.
            gc.collect()
            dist.destroy_process_group()
        return
    if not dist.is_initialized():
        sys.exit(status)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
