# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Say before a run what would stop it: packages, machine, data, config.

Exit status 1 if a line says FAIL. What only several ranks together can tell
is checked by ``tools/dist_doctor.sh``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from collections.abc import Sequence
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

from checks import machine, packages, variables
from plan import positive

_MEND = 'Mend what this says; if a package failed above, that first.'


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
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
    return parser.parse_args(argv)


def load_config(args: argparse.Namespace) -> Any:
    """Read the config as tools/train.py would."""
    from mmdet_megdet import cli

    # Its own parser's options cannot be had while the package is broken.
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
    """Check everything that depends on the config."""
    report.section(f'Config {args.config}')
    try:
        cfg = load_config(args)
        from checks import model, plan, weights
    except Exception as error:
        text = f'cannot be read: {reason(error)}'
        report.add([failure('config', text, _MEND)])
        return
    import torch

    gpus = args.gpus or torch.cuda.device_count()
    built = None
    try:
        built = model.build_model(cfg)
    except Exception as error:
        text = (
            'cannot be built, so BatchNorm, disk and batch plan are not '
            f'checked: {reason(error)}'
        )
        report.add([failure('model', text, _MEND)])
    else:
        report.run('BatchNorm', model.check_batch_norm, built)
        report.run('hooks', model.check_hooks, cfg, built)
        report.run('disk', model.check_checkpoints, cfg, built)
    report.run('weights', weights.check_weights, cfg)
    epoch = check_data(report, cfg, args)
    if built is not None and gpus:
        report.run('batch plan', plan.check_plan, cfg, built, gpus, epoch)
    elif built is not None:
        text = 'not checked: this machine has no GPU'
        remedy = 'Give the GPUs of the run: --gpus N.'
        report.add([warning('batch plan', text, remedy)])
    need = model.loader_need(cfg, args.gpus_per_node or min(gpus or 1, 8))
    if need is not None:
        report.add([machine.check_shared_memory(need)])


def check_data(report: Report, cfg: Any, args: argparse.Namespace) -> Any:
    """Check the data sets.

    Returns:
        Epoch, optional: What an epoch sees, where that is known.
    """
    try:
        from checks import data, model

        from mmdet_megdet.annotations import judge, training_epoch

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


def main(argv: Sequence[str] | None = None) -> int:
    """Check; return the exit status."""
    args = parse_args(argv)
    report = Report(as_json=args.json)
    # What packages print as they are imported is no part of the JSON.
    divert = contextlib.redirect_stdout(sys.stderr)
    with divert if args.json else contextlib.nullcontext():
        report.section('Packages')
        report.run('packages', packages.check_packages)
        report.section('Machine')
        report.run('GPU', machine.check_gpus)
        report.run('communication', machine.check_communication)
        report.run(
            variables.CHECK,
            variables.check_variables,
            os.environ,
        )
        report.run('limits', machine.check_limits)
        report.run('kernels', machine.check_kernels)
        if args.config is not None:
            check_config(report, args)
    return report.close()


if __name__ == '__main__':
    sys.exit(main())
