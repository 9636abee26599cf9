# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Evaluate a detector: options and meaning as mmdet's own tools/test.py."""

from __future__ import annotations

import argparse
import copy
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmdet.engine.hooks.utils import trigger_visualization_hook
from mmdet.evaluation import DumpDetResults
from mmdet.utils import setup_cache_size_limit_of_dynamo
from mmengine.config import Config, ConfigDict
from mmengine.dataset import BaseDataset
from mmengine.visualization import Visualizer

from mmdet_megdet.cli import (
    add_common_options,
    build_runner,
    join,
    judge_annotations,
    load_config,
    require_checkpoint,
    run_tool,
)
from mmdet_megdet.errors import ConfigError
from mmdet_megdet.upstream.mmengine_names import as_on_rank_0


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line, or what is given in its place."""
    parser = argparse.ArgumentParser(description='Test a detector')
    add = parser.add_argument
    add('config', help='config file')
    add('checkpoint', help='checkpoint file or address')
    add('--out', help='write the predictions to this .pkl or .pickle file')
    add('--show', action='store_true', help='show the predictions')
    where = 'write images of the predictions to work_dir/timestamp/<this>'
    add('--show-dir', help=where)
    seconds = 'seconds that --show shows an image'
    add('--wait-time', type=float, default=2, help=seconds)
    add('--tta', action='store_true', help='augment at test time')
    add_common_options(parser)
    return parser.parse_args(arguments)


def augment_at_test_time(cfg: Config) -> None:
    """Wrap the model and the test pipeline for test-time augmentation.

    Where the config has no ``tta_model`` or ``tta_pipeline``, mmdet's
    defaults apply: each image as it is and flipped, merged by NMS.
    """
    cfg.setdefault(
        'tta_model',
        dict(
            type='DetTTAModel',
            tta_cfg=dict(
                nms=dict(type='nms', iou_threshold=0.5), max_per_img=100
            ),
        ),
    )
    dataset = cfg.test_dataloader.dataset
    while 'dataset' in dataset:
        dataset = dataset.dataset
    if 'tta_pipeline' not in cfg:
        flips = [dict(type='RandomFlip', prob=prob) for prob in (1.0, 0.0)]
        keys = ('img_id', 'img_path', 'ori_shape', 'img_shape')
        keys += ('scale_factor', 'flip', 'flip_direction')
        pack = dict(type='PackDetInputs', meta_keys=keys)
        cfg.tta_pipeline = copy.deepcopy(dataset.pipeline)
        cfg.tta_pipeline[-1] = dict(
            type='TestTimeAug', transforms=[flips, [pack]]
        )
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)
    dataset.pipeline = cfg.tta_pipeline


def draw_all(visualizer: Visualizer, dataset: BaseDataset) -> None:
    """Draw on every rank, named by folder too, where images lie in several.

    mmdet draws on rank 0, and names it by the image's file alone: images of
    one name in two folders would overwrite each other.
    """
    infos = map(dataset.get_data_info, range(len(dataset)))
    folders = {os.path.dirname(os.path.abspath(i['img_path'])) for i in infos}
    common = os.path.commonpath(folders)
    draw = visualizer.add_datasample

    def add_datasample(
        *args: Any, data_sample: Any, out_file: str, **kwargs: Any
    ) -> None:
        inside = os.path.relpath(data_sample.img_path, common)
        path = os.path.join(os.path.dirname(out_file), inside)
        with as_on_rank_0():
            draw(*args, data_sample=data_sample, out_file=path, **kwargs)

    with as_on_rank_0():
        visualizer.dataset_meta = dataset.metainfo
    visualizer.add_datasample = add_datasample


def main(arguments: Sequence[str] | None = None) -> None:
    """Test as the command line says."""
    args = parse_args(arguments)
    setup_cache_size_limit_of_dynamo()
    cfg = load_config(args)
    cfg.load_from, cfg.resume = require_checkpoint(args.checkpoint), False
    if args.show or args.show_dir:
        if 'visualization' not in cfg.get('default_hooks', {}):
            raise ConfigError(
                '--show and --show-dir need the hook that draws: set '
                "default_hooks.visualization=dict(type='DetVisualizationHook')"
                ' in the config.'
            )
        trigger_visualization_hook(cfg, args)
    if args.tta:
        augment_at_test_time(cfg)
    join(cfg)
    judge_annotations(cfg, roles=('test',))
    runner = build_runner(cfg)
    if args.show_dir:
        draw_all(runner.visualizer, runner.test_dataloader.dataset)
    if args.out:
        runner.test_evaluator.metrics.append(
            DumpDetResults(out_file_path=args.out)
        )
    runner.test()


if __name__ == '__main__':
    run_tool(main)
