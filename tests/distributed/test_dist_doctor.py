# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""tools/dist_doctor.py: healthy ranks, and each thing that may be wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from mmengine.config import Config

from mmdet_megdet.errors import LaunchError
from mmdet_megdet.sync_bn import function
from mmdet_megdet.sync_bn.groups import bn_group
from tests.distributed.ranks import run_ranks
from tests.tools.command import (
    PATIENCE,
    ROOT,
    TINY_CONFIG,
    TOOLS,
    environment,
    run,
    start,
)

sys.path.insert(0, str(TOOLS))  # as for a script there

import dist_doctor
from checks import collectives, cost, parity, ranks
from checks.report import FAIL, PASS, WARN

SCRIPT = TOOLS / 'dist_doctor.sh'
CPU = torch.device('cpu')

# Python runs it as it starts: rank 1 has another source of the package,
# another version of numpy, a variable at a price, and an all-reduce
# that is off by one now and then. Each rank leaves its exit status in a file,
# since torchrun ends a rank that is slower to end than another.
SITE = """
import os, sys
if 'RANK' in os.environ:
    leave = sys.exit
    def leave_and_tell(status=None):
        with open({folder!r} + '/status' + os.environ['RANK'], 'w') as file:
            file.write(str(status))
        leave(status)
    sys.exit = leave_and_tell
if os.environ.get('RANK') == '1':
    os.environ['CUDA_LAUNCH_BLOCKING'] = '1'
    sys.path.insert(0, {other!r})
    import numpy
    numpy.__version__ = '0.0'
    import torch.distributed as dist
    all_reduce = dist.all_reduce
    def wrong(tensor, *args, **kwargs):
        work = all_reduce(tensor, *args, **kwargs)
        if tensor.numel() == 1025:
            tensor[7] += 1
        return work
    dist.all_reduce = wrong
"""

CONFIG = """
_base_ = {base!r}
work_note = 'rank {{{{$RANK:0}}}}'
"""

# Rank 1 stops in the middle of the checks.
STOP = """
import os, signal
if os.environ.get('RANK') == '1':
    import torch.distributed as dist
    all_reduce = dist.all_reduce
    def stop(tensor, *args, **kwargs):
        if tensor.numel() == 1025:
            os.kill(os.getpid(), signal.SIGSTOP)
        return all_reduce(tensor, *args, **kwargs)
    dist.all_reduce = stop
"""


def doctor(*arguments, cold=False, **settings):
    """Exit status, report and what was said on standard error."""
    done = start(
        *(SCRIPT, *arguments, '--json'),
        env=environment(**settings),
        cold=cold,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    output, errors = done.communicate(timeout=PATIENCE)
    report = json.loads(output) if output else None
    return done.returncode, report, errors


def texts(report, level):
    return {
        f['check']: f['text']
        for f in report['findings']
        if f['level'] == level
    }


@pytest.mark.slow
def test_healthy_ranks():
    # Under load a rank may start much later than another.
    status, report, _ = doctor(2, TINY_CONFIG, '--timeout', 120, cold=True)
    assert (status, report['ok'], report['counts'][FAIL]) == (0, True, 0)
    good = texts(report, PASS)
    assert good['versions'].startswith('the same on all ranks: CUDA ')
    assert good['config'].startswith('the same on all ranks: digest ')
    assert good['all-reduce'] == 'all ranks: exact sums on every rank'
    assert 'equals float64 BatchNorm' in good['MegDetSyncBN']
    assert good['cost of an iteration'].startswith(
        '1 layers over all ranks: 2 all-reduces, about '
    )
    assert 'images at once: 8, accumulation: 2' in good['batch plan']
    figures = report['figures']['all ranks']
    assert list(figures['latency_seconds']) == [
        str(size) for size in collectives.SIZES
    ]
    assert all(t > 0 for t in figures['latency_seconds'].values())
    latencies = {int(n): t for n, t in figures['latency_seconds'].items()}
    assert figures['bn_seconds'] == pytest.approx(
        cost.step_seconds([cost.Layer(4, 1, None)], latencies)
    )


@pytest.mark.slow
def test_ranks_that_differ(tmp_path):
    """Source, version, config, variable and sums of rank 1 are its own."""
    other = tmp_path / 'other'
    shutil.copytree(ROOT / 'mmdet_megdet', other / 'mmdet_megdet')
    with (other / 'mmdet_megdet' / 'version.py').open('a') as file:
        file.write('# changed\n')
    (tmp_path / 'sitecustomize.py').write_text(
        SITE.format(other=str(other), folder=str(tmp_path))
    )
    config = tmp_path / 'config.py'
    config.write_text(CONFIG.format(base=str(TINY_CONFIG)))
    status, report, said = doctor(
        2, config, '--timeout', 120, PYTHONPATH=f'{tmp_path}:{ROOT}'
    )
    assert status == 1
    bad = texts(report, FAIL)
    assert set(bad) == {'versions', 'config', 'all-reduce'}
    for check, pattern in (
        ('versions', r'numpy is 2\.\S+ on rank 0 and 0\.0 on rank 1'),
        (
            'versions',
            r'files\) is \w{12} on rank 0 and \w{12} on rank 1',
        ),
        ('config', r"work_note is 'rank 0' on rank 0 and 'rank 1' on rank 1"),
        (
            'all-reduce',
            'all ranks: wrong on rank 1: 1 of 1025 sums in float32 are '
            'wrong, the first 4 instead of 3',
        ),
    ):
        assert re.search(pattern, bad[check]), bad[check]
    (text,) = texts(report, WARN).values()
    assert text.startswith('rank 1: CUDA_LAUNCH_BLOCKING=1: the host waits')
    # Every rank ends so, not only the one that prints.
    for rank in range(2):
        assert (tmp_path / f'status{rank}').read_text() == '1'
    assert 'exitcode  : 1 ' in said


@pytest.mark.slow
def test_a_rank_that_stops_is_named(tmp_path):
    (tmp_path / 'sitecustomize.py').write_text(STOP)
    status, report, said = doctor(
        2, '--timeout', 24, PYTHONPATH=f'{tmp_path}:{ROOT}'
    )
    assert status == 1
    assert report is None
    assert re.search(r'rank 1\b.* no sign of life', said)
    assert 'all-reduce in all ranks' in said


def test_a_rank_that_does_not_come_is_named():
    store = dist.HashStore()
    with pytest.raises(LaunchError, match=r'ranks 1, 2 of 3 did not arrive'):
        ranks._hosts(store, 0, 3, 0.2)
    # And the others are told so.
    store = dist.HashStore()
    store.set('0', 'a')
    store.set('here', '0,2')
    with pytest.raises(LaunchError, match=r'rank 1 of 3 .*0 on a, 2 on'):
        ranks._hosts(store, 2, 3, 0.2)


def test_nobody_at_the_address(monkeypatch):
    monkeypatch.setenv('MASTER_ADDR', '127.0.0.1')
    monkeypatch.setenv('MASTER_PORT', '1')
    monkeypatch.delenv('TORCHELASTIC_USE_AGENT_STORE', raising=False)
    with pytest.raises(LaunchError, match=r'cannot reach rank 0 at 127'):
        ranks._store(1, timedelta(seconds=0.5))


def test_slurm_command(tmp_path):
    srun = tmp_path / 'srun'
    srun.write_text('#!/bin/sh\necho "$@"\n')
    srun.chmod(0o755)
    result = run(
        TOOLS / 'slurm_doctor.sh',
        *('PARTITION', 'JOB', 'CONFIG', '--json'),
        PATH=f'{tmp_path}:{os.environ["PATH"]}',
        GPUS='16',
    )
    assert '--partition=PARTITION --job-name=JOB ' in result.stdout
    assert '--ntasks=16 ' in result.stdout
    assert result.stdout.endswith(
        f'{TOOLS}/dist_doctor.py --launcher slurm CONFIG --json\n'
    )
    result = run(TOOLS / 'slurm_doctor.sh', 'PARTITION')
    assert result.returncode == 2
    assert result.stdout.startswith('usage: tools/slurm_doctor.sh PARTITION')


@pytest.mark.parametrize('arguments', [[], ['0']])
def test_usage(arguments):
    result = run(SCRIPT, *arguments)
    assert result.returncode == 2
    assert result.stdout.startswith('usage: tools/dist_doctor.sh GPUS')


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ([], 'start it by tools/dist_doctor.sh GPUS'),
        (
            ['--launcher', 'pytorch', '--bn-size', '8'],
            '--bn-size counts images: give --images-per-gpu',
        ),
        (['--timeout', '-1'], "'-1' is not a positive number"),
    ],
)
def test_options(capsys, arguments, message):
    with pytest.raises(SystemExit):
        dist_doctor.parse_args(arguments)
    assert message in capsys.readouterr().err


def levels(findings):
    return [(f.level, f.text) for f in findings]


def in_groups(rank, world_size):
    """What four ranks find in BN groups of two; then with faults planted."""
    control = dist.new_group(backend='gloo')
    hosts = [f'host{r // 2}' for r in range(world_size)]
    here = ranks.Meeting(rank, hosts, CPU, control)
    first = rank // 2 * 2
    group = collectives.Group('pairs', [first, first + 1], bn_group(2, CPU))
    found = {
        'sums': levels(collectives.check_sums(here, group)),
        'parity': levels(parity.check_parity(here, group)),
        'same': levels(ranks.check_same(here, None)),
        'config': levels(
            dist_doctor.check_configs_read(
                here, 'not here' if rank == 1 else ''
            )
        ),
    }
    own = bn_group(2, CPU)
    found['beside'] = levels(
        collectives.check_beside_buckets(here, group, own)
    )
    found['kernels'] = levels(collectives.check_kernels(here))
    all_reduce, versions = dist.all_reduce, ranks.versions

    def off(tensor, *args, **kwargs):
        work = all_reduce(tensor, *args, **kwargs)
        if work is not None:
            work.wait()
        tensor[-1] += 1
        return work

    if rank == 2:
        dist.all_reduce = off
    found['wrong sums'] = levels(collectives.check_sums(here, group))
    found['wrong beside'] = levels(
        collectives.check_beside_buckets(here, group, own)
    )
    dist.all_reduce = all_reduce

    # Every rank normalises by its own batch.
    function.all_reduce = lambda sums, group, timers: None
    found['no parity'] = levels(parity.check_parity(here, group))

    if rank == 3:
        ranks.versions = lambda: versions() | dict(numpy='1.0')
    found['other version'] = levels(ranks.check_same(here, None))
    return found


def test_groups_and_faults():
    by_rank = run_ranks(in_groups, 4)
    # Every rank comes to the same report.
    assert all(found == by_rank[0] for found in by_rank)
    found = by_rank[0]
    assert found['sums'] == [(PASS, 'pairs: exact sums on every rank')]
    ((level, text),) = found['parity']
    assert level == PASS
    assert 'float32, bfloat16, float16; even, uneven and empty' in text
    assert [level for level, _ in found['same']] == [PASS] * 3
    assert found['config'] == [(FAIL, 'rank 1 cannot read it: not here')]
    ((level, text),) = found['wrong sums']
    assert level == FAIL
    # Ranks 2 and 3 give 3 and 4 at place 0.
    assert text == (
        'pairs: wrong on rank 2: 1 of 1 sums in float32 are wrong, the '
        'first 8 instead of 7'
    )
    ((level, text),) = found['beside']
    assert level == PASS
    assert re.match(r'pairs: 32 of BatchNorm beside 8 of 16.8 MB in ', text)
    assert found['wrong beside'] == [(FAIL, 'pairs: wrong sums on rank 2')]
    assert found['kernels'] == [
        (PASS, 'all ranks: plain operations: cpu is no GPU')
    ]
    ((level, text),) = found['no parity']
    assert level == FAIL
    assert 'quantities differ from float64 BatchNorm, rank 0: ' in text
    level, text = found['other version'][0]
    assert level == FAIL
    assert text.endswith(' on ranks 0-2 and 1.0 on rank 3')


def test_groups_of_a_training():
    cfg = Config.fromfile(TINY_CONFIG)
    cfg.default_hooks.sync_bn_group = dict(type='SyncBNGroupHook', bn_size=8)
    training = cost.read_training(cfg, 4)
    assert training.groups == {2: [cost.Layer(4, 1, 8)]}
    assert [f.level for f in training.findings] == [PASS, PASS]


def test_a_training_that_cannot_be_built():
    training = cost.read_training(Config(dict(model=dict(type='NoSuch'))), 2)
    ((level, text),) = levels(training.findings)
    assert level == FAIL
    assert "'NoSuch is not in the mmengine::model registry" in text.replace(
        '"', "'"
    )
    assert training.groups == {2: []}


def test_who_is_late():
    # Rank 1 comes last: it waits least, and the others wait for it.
    waits = [[5.0, 4.0, 6.0], [1.0, 1.0, 1.0], [3.0, 3.0, 3.0]]
    assert collectives._lateness(waits) == [0.0, 4.0, 2.0]


def test_shares_of_parity():
    assert parity.shares('uneven', 4) == [1, 2, 3, 1]
    assert parity.shares('empty ranks', 3) == [3, 0, 3]


def test_where_the_ranks_are():
    hosts = ['a', 'a', 'b', 'a']
    assert str(ranks.Meeting(0, hosts, CPU, None)) == (
        'a: ranks 0, 1, 3; b: rank 2'
    )
