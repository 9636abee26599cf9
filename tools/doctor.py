# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Say before a run what would stop it: packages, machine, data, config.

Exit status 1 if a line says FAIL. What only several ranks together can tell
is checked by ``tools/dist_doctor.sh``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from checks import machine, packages
from checks.report import Report
from plan import positive


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
    parser.add_argument(
        '--cfg-options', nargs='+', help='as of tools/train.py'
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
    if args.cfg_options:
        words += ['--cfg-options', *args.cfg_options]
    return cli.load_config(parser.parse_args(words))


def check_config(report: Report, args: argparse.Namespace) -> None:
    """Check everything that depends on the config."""
    report.section(f'Config {args.config}')
    cfg = built = epoch = None
    with report.checking('config'):
        import torch
        from checks import data, training

        from mmdet_megdet.annotations import judge, training_epoch

        cfg = load_config(args)
    if cfg is None:
        return
    with report.checking('model'):
        built = training.build_model(cfg)
        report.add(training.check_batch_norm(built))
    report.run('weights', training.check_weights, cfg)
    with report.checking('data'):
        judgement = judge(cfg)
        report.add(data.check_annotations(cfg, judgement))
        report.add(training.check_classes(cfg, data.classes(judgement)))
        epoch = training_epoch(cfg, judgement)
        report.add(data.check_images(judgement, args.images, args.decode))
    if built is not None:
        gpus = args.gpus or torch.cuda.device_count()
        report.run('batch plan', training.check_plan, cfg, built, gpus, epoch)


def main(argv: Sequence[str] | None = None) -> int:
    """Check; return the exit status."""
    args = parse_args(argv)
    report = Report()
    report.section('Packages')
    report.run('python', packages.check_python)
    for name in packages.PACKAGES:
        report.run(name, packages.check_package, name)
    report.section('Machine')
    report.run('GPU', machine.check_gpus)
    report.run('machine', machine.check_surroundings, os.environ)
    report.run('kernels', machine.check_kernels)
    if args.config is not None:
        check_config(report, args)
    return report.close()


if __name__ == '__main__':
    sys.exit(main())
