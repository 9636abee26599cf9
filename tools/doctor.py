# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Says before a run what would stop it: packages, machine, data, config.

Exit status 1 if a line says FAIL. What only several ranks together can tell
is checked by ``tools/dist_doctor.sh``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

try:
    from checks.report import Report, broken, failure, reason, warning
except ModuleNotFoundError as error:
    sys.exit(
        f'FAIL  {error.name}: not installed\n      -> make setup, or pip '
        'install rich'
    )

from checks.kernels import check_kernels
from checks.limits import (
    check_locked_memory,
    check_open_files,
    check_shared_memory,
)
from checks.options import positive
from checks.variables import check_variables, nccl_settings
from checks.versions import check_versions


def parse_args() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description='Check what would stop a run, on one process.'
    )
    parser.add_argument('config', nargs='?', help='config file to check too')
    parser.add_argument(
        '--gpus',
        type=positive,
        help='GPUs of the whole run, for the batch plan (default: this '
        "machine's)",
    )
    parser.add_argument(
        '--gpus-per-node',
        type=positive,
        help='of them on one machine, for its shared memory (default: '
        '--gpus, at most 8)',
    )
    parser.add_argument(
        '--images',
        type=positive,
        metavar='N',
        help='read only N images of each data set, spread evenly '
        '(default: all)',
    )
    parser.add_argument(
        '--decode',
        action='store_true',
        help='decode the images wholly, which finds truncated ones; '
        'without it their headers are read',
    )
    parser.add_argument('--work-dir', help='as of tools/train.py')
    parser.add_argument(
        '--cfg-options', nargs='+', help='as of tools/train.py'
    )
    parser.add_argument(
        '--json', action='store_true', help='print one JSON object instead'
    )
    return parser.parse_args()


def load_config(args: argparse.Namespace) -> Any:
    """Reads the config as tools/train.py would."""
    from mmdet_megdet import cli

    parser = argparse.ArgumentParser()
    parser.add_argument('config')
    cli.add_common_options(parser)
    words = [args.config]
    if args.work_dir is not None:
        words += ['--work-dir', args.work_dir]
    if args.cfg_options:
        words += ['--cfg-options', *args.cfg_options]
    return cli.load_config(parser.parse_args(words))


def check_config(report: Report, args: argparse.Namespace) -> None:
    """Everything that depends on the config."""
    report.section(f'Config {args.config}')
    try:
        cfg = load_config(args)
        from checks import model, plan, weights
    except Exception as error:
        report.add(
            [
                failure(
                    'config',
                    f'cannot be read: {reason(error)}',
                    'Mend what this says; if a package failed above, that '
                    'first.',
                )
            ]
        )
        return
    gpus = args.gpus or visible_gpus()
    try:
        built = model.build_model(cfg)
    except Exception as error:
        built = None
        report.add(
            [
                failure(
                    'model',
                    f'cannot be built, so BatchNorm, disk and batch plan '
                    f'are not checked: {reason(error)}',
                    'Mend what this says; if a package failed above, that '
                    'first.',
                )
            ]
        )
    if built is not None:
        report.run('BatchNorm', model.check_batch_norm, built)
        report.run('hooks', model.check_hooks, cfg, built)
        report.run('disk', model.check_checkpoints, cfg, built)
    report.run('weights', weights.check_weights, cfg)
    epoch = check_data(report, cfg, args)
    if built is not None and gpus:
        report.run('batch plan', plan.check_plan, cfg, built, gpus, epoch)
    elif built is not None:
        report.add(
            [
                warning(
                    plan.CHECK,
                    'not checked: this machine has no GPU',
                    'Give the GPUs of the run: --gpus N.',
                )
            ]
        )
    local = args.gpus_per_node or min(gpus or 1, 8)
    need = model.loader_need(cfg, local)
    if need is not None:
        report.run('shared memory', check_shared_memory, need)


def check_data(
    report: Report, cfg: Any, args: argparse.Namespace
) -> Any | None:
    """The data sets; returns what an epoch sees, where that is known."""
    from checks import data, model

    from mmdet_megdet.annotations import judge, training_epoch

    try:
        judgement = judge(cfg)
    except Exception as error:
        report.add([broken('data', error)])
        return None
    report.run('data', data.check_annotations, cfg, judgement)
    report.run('data', data.check_images, judgement, args.images, args.decode)
    report.run(
        'num_classes', model.check_classes, cfg, data.classes(judgement)
    )
    return training_epoch(cfg, judgement)


def visible_gpus() -> int:
    """GPUs that torch sees."""
    import torch

    return torch.cuda.device_count()


def main() -> int:
    """Checks; returns the exit status."""
    args = parse_args()
    report = Report(as_json=args.json)
    # What packages print as they are imported is no part of the JSON.
    divert = contextlib.redirect_stdout(sys.stderr)
    with divert if args.json else contextlib.nullcontext():
        report.section('Packages')
        report.run('versions', check_versions)
        report.section('Machine')
        report.run(
            'environment variables',
            check_variables,
            nccl_settings(os.environ),
        )
        report.run('open files', check_open_files)
        report.run('locked memory', check_locked_memory)
        report.run('shared memory', check_shared_memory)
        report.run('kernels', check_kernels)
        if args.config is not None:
            check_config(report, args)
    return report.close()


if __name__ == '__main__':
    sys.exit(main())
