# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Check what only several ranks together can tell; see docs/doctor.md.

Started by ``tools/dist_doctor.sh`` or ``tools/slurm_doctor.sh``. Rank 0
prints the report; every rank ends with status 1 if a line says FAIL.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch.distributed as dist
from checks import collectives, cost, machine, parity, ranks, variables
from checks.report import PASS, Finding, Report, failure, passed, reason
from plan import bn_size, positive, positive_number

from mmdet_megdet.cli import add_common_options, load_config, run_tool
from mmdet_megdet.faults.rank_watch import RankWatch
from mmdet_megdet.recipe.plan import group_ranks
from mmdet_megdet.sync_bn import bn_group
from mmdet_megdet.text import these_ranks


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description='Check what only several ranks together can tell.'
    )
    parser.add_argument('config', nargs='?', help='config file to check too')
    parser.add_argument(
        '--images-per-gpu',
        type=positive,
        help="images of a rank (default: the config's)",
    )
    parser.add_argument(
        '--bn-size',
        type=bn_size,
        default=argparse.SUPPRESS,
        help="images of BatchNorm's statistics, or 'none' for those of all "
        "ranks (default: the config's)",
    )
    parser.add_argument(
        '--timeout',
        type=positive_number,
        default=30.0,
        help='seconds to wait for other ranks (default: 30)',
    )
    parser.add_argument(
        '--json', action='store_true', help='print one JSON object instead'
    )
    add_common_options(parser)
    args = parser.parse_args(argv)
    if args.launcher == 'none':
        parser.error(
            'needs ranks: start it by tools/dist_doctor.sh GPUS or '
            'tools/slurm_doctor.sh PARTITION JOB_NAME'
        )
    if 'bn_size' in args and not (args.config or args.images_per_gpu):
        parser.error('--bn-size counts images: give --images-per-gpu too')
    return args


def read_config(args: argparse.Namespace) -> tuple[Any, str]:
    """Return the config, if one is given and can be read; else why not."""
    if args.config is None:
        return None, ''
    try:
        cfg = load_config(args)
        if args.images_per_gpu is not None:
            cfg.train_dataloader.batch_size = args.images_per_gpu
        if 'bn_size' in args:
            hook = dict(type='SyncBNGroupHook', bn_size=args.bn_size)
            cfg.merge_from_dict({'default_hooks.sync_bn_group': hook})
    except Exception as error:
        return None, reason(error)
    return cfg, ''


def check_configs_read(
    meeting: ranks.Meeting, error: str
) -> Iterator[Finding]:
    """Check that every rank could read its config; a collective."""
    errors = meeting.gather(error)
    bad = [rank for rank, text in enumerate(errors) if text]
    if bad:
        yield failure(
            'config',
            f'{these_ranks(bad)} cannot read it: {errors[bad[0]]}',
            'Mend what this says; the file has to be on every machine.',
        )


def check_machines(meeting: ranks.Meeting) -> Iterator[Finding]:
    """Say what ranks' environments have against the run; a collective."""
    own = [*variables.check_variables(os.environ), *machine.check_limits()]
    where: dict[Finding, list[int]] = {}
    for rank, findings in enumerate(meeting.gather(own)):
        for finding in findings:
            if finding.level != PASS:
                where.setdefault(finding, []).append(rank)
    for finding, bad in where.items():
        yield finding._replace(text=f'{these_ranks(bad)}: {finding.text}')
    if not where:
        yield passed('machines', 'variables and limits are good on all ranks')


def bn_groups(
    meeting: ranks.Meeting, training: cost.Training
) -> Iterator[collectives.Group]:
    """Yield all ranks, then each different BN group; a collective."""
    everyone = len(meeting.hosts)
    yield collectives.Group(
        'all ranks', list(range(everyone)), dist.group.WORLD
    )
    for size in sorted(training.groups):
        if size not in (1, everyone):
            first = meeting.rank // size * size
            yield collectives.Group(
                f'BN groups of {size} ranks',
                list(range(first, first + size)),
                bn_group(size, meeting.device),
            )


def run_checks(
    args: argparse.Namespace,
    report: Report,
    meeting: ranks.Meeting,
    watch: RankWatch,
) -> None:
    """Make all checks, in the same order on every rank."""
    world_size = len(meeting.hosts)
    cfg, error = read_config(args)
    report.section(f'{world_size} ranks on {meeting.device.type}')
    report.add([passed('ranks', str(meeting))])
    watch.at('comparing the ranks')
    report.add(unread := list(check_configs_read(meeting, error)))
    if unread:
        cfg = None
    report.add(ranks.check_same(meeting, cfg))
    report.add(check_machines(meeting))
    watch.at('compiling and checking kernels')
    report.add(collectives.check_kernels(meeting))
    watch.at('building the model')
    training = None
    if meeting.rank == 0 and cfg is not None:
        training = cost.read_training(cfg, world_size)
    elif meeting.rank == 0:
        size, images = getattr(args, 'bn_size', None), args.images_per_gpu
        found = group_ranks(size, images, world_size)
        training = cost.Training({found or world_size: []})
    training = meeting.from_first(training)
    report.add(training.findings)
    for group in bn_groups(meeting, training):
        report.section(f'Collectives, {group.name}')
        check_group(report, meeting, watch, training, group)
    alone = training.groups.get(1)
    if alone and world_size > 1:
        text = f'{len(alone)} layers are local and do not communicate'
        report.add([passed('cost of an iteration', text)])
    report.section('Pace')
    watch.at('a fixed computation')
    report.add(collectives.check_pace(meeting))


def check_group(
    report: Report,
    meeting: ranks.Meeting,
    watch: RankWatch,
    training: cost.Training,
    group: collectives.Group,
) -> None:
    """Check what one group of ranks computes and costs."""
    watch.at(f'all-reduce in {group.name}')
    report.add(collectives.check_sums(meeting, group))
    watch.at(f'MegDetSyncBN in {group.name}')
    report.add(parity.check_parity(meeting, group))
    own = bn_group(len(group.ranks), meeting.device)
    if own is not None:
        watch.at(f'all-reduce beside buckets in {group.name}')
        report.add(collectives.check_beside_buckets(meeting, group, own))
    watch.at(f'timing all-reduce in {group.name}')
    small = collectives.latencies(meeting, group)
    size, seconds = collectives.bandwidth(meeting, group)
    report.add(collectives.describe(group, small, size, seconds))
    layers = training.groups.get(len(group.ranks), [])
    if layers:
        report.add(cost.describe(layers, small, group.name))
    report.figures[group.name] = dict(
        ranks=len(group.ranks),
        latency_seconds=small,
        large_bytes=size,
        large_seconds=seconds,
        bn_seconds=cost.step_seconds(layers, small),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Check; return the exit status."""
    args = parse_args(argv)
    divert = contextlib.redirect_stdout(sys.stderr)
    with divert if args.json else contextlib.nullcontext():
        meeting = ranks.meet(args.launcher, args.timeout)
        report = Report(as_json=args.json, silent=meeting.rank > 0)
        watch = RankWatch(
            meeting.rank,
            len(meeting.hosts),
            args.timeout,
            lambda line: print(line, file=sys.stderr, flush=True),
        )
        watch.start()
        try:
            run_checks(args, report, meeting, watch)
        except BaseException as error:
            watch.fail(error)
            raise
        watch.stop()
    return report.close()


if __name__ == '__main__':
    status = []
    run_tool(lambda: status.append(main()))
    sys.exit(status[0])
