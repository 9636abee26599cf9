# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Check what only several ranks together can tell; see docs/doctor.md.

Started by ``tools/dist_doctor.sh`` or ``tools/slurm_doctor.sh``. Rank 0
prints the report; every rank ends with status 1 if a line says FAIL.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from checks import collectives, machine, parity, ranks
from checks.report import PASS, Finding, Report, passed

from mmdet_megdet.arguments import positive_number
from mmdet_megdet.cli import add_common_options, load_config, run_tool
from mmdet_megdet.faults.watch import RankWatch
from mmdet_megdet.ranks import all_raise
from mmdet_megdet.recipe import group_ranks
from mmdet_megdet.sync_bn import bn_group, bn_sizes
from mmdet_megdet.text import these_ranks


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description='Check what only several ranks together can tell.'
    )
    parser.add_argument('config', nargs='?', help='config file to check too')
    parser.add_argument(
        '--timeout',
        type=positive_number,
        default=30.0,
        help='seconds to wait for other ranks (default: 30)',
    )
    add_common_options(parser)
    args = parser.parse_args(argv)
    if args.launcher == 'none':
        parser.error(
            'needs ranks: start it by tools/dist_doctor.sh GPUS or '
            'tools/slurm_doctor.sh PARTITION JOB_NAME'
        )
    return args


def check_machines(meeting: ranks.Meeting) -> Iterator[Finding]:
    """Say what ranks' environments have against the run; a collective."""
    own = list(machine.check_surroundings(os.environ))
    where: dict[Finding, list[int]] = {}
    for rank, findings in enumerate(meeting.gather(own)):
        for finding in findings:
            if finding.level != PASS:
                where.setdefault(finding, []).append(rank)
    for finding, bad in where.items():
        yield finding._replace(text=f'{these_ranks(bad)}: {finding.text}')
    if not where:
        yield passed('machines', 'variables and limits are good on all ranks')


def read_training(cfg: Any, world_size: int) -> tuple[set[int], list[Finding]]:
    """Return the ranks of BN groups by the config's model, and findings."""
    from checks import training

    built = training.build_model(cfg)
    findings = [
        *training.check_batch_norm(built),
        *training.check_plan(cfg, built, world_size, None),
    ]
    images = cfg.train_dataloader.batch_size
    groups = {
        group_ranks(size, images, world_size)
        for size in bn_sizes(built, training.bn_size_of(cfg))
    }
    return groups - {None}, findings


def run_checks(
    args: argparse.Namespace,
    report: Report,
    meeting: ranks.Meeting,
    watch: RankWatch,
) -> None:
    """Make all checks, in the same order on every rank."""
    world_size = len(meeting.hosts)
    report.section(f'{world_size} ranks on {meeting.device.type}')
    report.add([passed('ranks', str(meeting))])
    with all_raise():
        cfg = load_config(args) if args.config else None
    watch.at('comparing the ranks')
    report.add(ranks.check_same(meeting, cfg))
    report.add(check_machines(meeting))
    watch.at('compiling and checking kernels')
    report.add(collectives.check_kernels(meeting))
    watch.at('building the model')
    groups, findings = set(), []
    with all_raise():
        # Configs may differ: that of rank 0 counts.
        if meeting.rank == 0 and cfg is not None:
            groups, findings = read_training(cfg, world_size)
    groups, findings = meeting.gather((groups, findings))[0]
    report.add(findings)
    watch.at('a fixed computation')
    report.add(collectives.check_pace(meeting))
    # A rank alone does not communicate.
    for size in sorted({world_size, *groups} - {1}, reverse=True):
        check_group(report, meeting, watch, size)


def check_group(
    report: Report, meeting: ranks.Meeting, watch: RankWatch, size: int
) -> None:
    """Check all-reduce and the layer in the groups of so many ranks."""
    name = f'BN groups of {size} ranks'
    if size == len(meeting.hosts):
        name = 'all ranks'
    first = meeting.rank // size * size
    report.section(f'Collectives, {name}')
    watch.at(f'making {name}')
    group = collectives.Group(
        name,
        list(range(first, first + size)),
        bn_group(size, meeting.device),
    )
    for check in (
        collectives.check_sums,
        parity.check_parity,
        collectives.check_beside_buckets,
        collectives.check_speed,
    ):
        watch.at(f'{check.__name__} in {name}')
        report.add(check(meeting, group))


def main(argv: Sequence[str] | None = None) -> int:
    """Check; return the exit status."""
    args = parse_args(argv)
    meeting = ranks.meet(args.launcher, args.timeout)
    report = Report(silent=meeting.rank > 0)
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
