# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Train a detector: options and meaning as mmdet's own tools/train.py."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmdet.utils import setup_cache_size_limit_of_dynamo
from mmengine.config import Config
from mmengine.dist import all_gather_object

from mmdet_megdet.arguments import bn_size, positive
from mmdet_megdet.cli import (
    add_common_options,
    build_runner,
    join,
    judge_annotations,
    load_config,
    require_checkpoint,
    run_tool,
)
from mmdet_megdet.errors import CheckpointError, ConfigError
from mmdet_megdet.faults import SetupCheckHook, latest_checkpoint
from mmdet_megdet.faults.restart import (
    choose_images,
    end_with_agent,
    is_elastic,
)
from mmdet_megdet.ranks import differences
from mmdet_megdet.runtime import find_hook


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line, or what is given in its place."""
    parser = argparse.ArgumentParser(description='Train a detector')
    add = parser.add_argument
    add('config', help='config file')
    amp = 'train in mixed precision (GPU)'
    add('--amp', action='store_true', help=amp)
    add(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate by world size x images per GPU / '
        'auto_scale_lr.base_batch_size of the config',
    )
    add(
        '--resume',
        nargs='?',
        const='auto',
        help='continue from this checkpoint; without a path, from the latest '
        'one in the work folder, or from the beginning if there is none',
    )
    # The others are left to the config where they are not given.
    unset = argparse.SUPPRESS
    add(
        '--bn-size',
        type=bn_size,
        default=unset,
        help='take the statistics of BatchNorm over this many images, or '
        "over those of all ranks ('none')",
    )
    images = parser.add_mutually_exclusive_group()
    images.add_argument(
        '--images-per-gpu',
        type=positive,
        default=unset,
        help='images that each GPU takes at once; TotalBatchHook adapts the '
        'accumulation',
    )
    images.add_argument(
        '--max-images-per-gpu',
        type=positive,
        default=unset,
        help='images that fit a GPU: each takes the most up to that with '
        'which total batch and BN size divide on the GPUs that there are',
    )
    add_common_options(parser)
    return parser.parse_args(arguments)


def set_bn_size(cfg: Config, size: int | None) -> None:
    """Make SyncBNGroupHook override the layers' ``bn_size``.

    (``norm_cfg.bn_size`` among ``--cfg-options`` changes a variable that the
    model does not read any more.)
    """
    hook = find_hook(cfg, 'SyncBNGroupHook')
    if hook is not None:
        hook['bn_size'] = size
        return
    hook = dict(type='SyncBNGroupHook', bn_size=size)
    cfg.merge_from_dict(dict(default_hooks=dict(sync_bn_group=hook)))


def apply_options(cfg: Config, args: argparse.Namespace) -> None:
    """Write the options of the training tool into the config."""
    if args.amp:
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.loss_scale = 'dynamic'
    if args.auto_scale_lr:
        if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
            raise ConfigError(
                '--auto-scale-lr needs auto_scale_lr=dict(base_batch_size=N) '
                'in the config: the batch size that its learning rate is for.'
            )
        cfg.auto_scale_lr.enable = True
    if 'images_per_gpu' in args:
        cfg.train_dataloader.batch_size = args.images_per_gpu
    if 'bn_size' in args:
        set_bn_size(cfg, args.bn_size)
    if is_elastic():
        restart = dict(type='RestartHook')
        cfg.merge_from_dict(dict(default_hooks=dict(restart=restart)))
    if args.resume == 'auto':
        latest = latest_checkpoint(cfg.work_dir)
        if latest is not None:
            cfg.resume, cfg.load_from = True, latest
    elif args.resume is not None:
        cfg.resume, cfg.load_from = True, require_checkpoint(args.resume)


def check_same_start(cfg: Config) -> None:
    """Check that all ranks resume from the same checkpoint; a collective."""
    start = cfg.load_from if cfg.get('resume') else 'none'
    found = differences(all_gather_object({'the checkpoint': start}))
    if found is not None:
        raise CheckpointError(
            f'--resume finds different checkpoints on different ranks '
            f'({found}): put the work folder on a file system that all '
            'machines share, or name a file that all have with --resume PATH.'
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as the command line says."""
    end_with_agent()
    args = parse_args(arguments)
    setup_cache_size_limit_of_dynamo()
    cfg = load_config(args)
    apply_options(cfg, args)
    world_size = join(cfg)
    if 'max_images_per_gpu' in args:
        choose_images(cfg, args.max_images_per_gpu, world_size)
    judge_annotations(cfg)
    runner = build_runner(cfg)
    check_same_start(cfg)
    runner.register_hook(SetupCheckHook())
    runner.train()


if __name__ == '__main__':
    run_tool(main)
