# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""tools/dist_doctor.py: healthy ranks, and each thing that may be wrong."""

import os
import re

import dist_doctor
import pytest
import torch
import torch.distributed as dist
from checks import collectives, parity, ranks
from checks.report import FAIL, PASS, WARN
from mmengine.config import Config

from mmdet_megdet.errors import LaunchError
from mmdet_megdet.sync_bn import function
from mmdet_megdet.sync_bn.groups import bn_group
from tests.distributed.ranks import run_ranks
from tests.tools.checks.findings import levels, shown
from tests.tools.command import ROOT, TINY_CONFIG, TOOLS, run

SCRIPT = TOOLS / 'dist_doctor.sh'
CPU = torch.device('cpu')

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


@pytest.mark.slow
def test_healthy_ranks():
    # Under load a rank may start much later than another.
    done = run(SCRIPT, 2, TINY_CONFIG, '--timeout', 120, cold=True)
    assert done.returncode == 0, done.stdout
    assert not shown(done.stdout, FAIL)
    good = shown(done.stdout, PASS)
    assert good['versions'][0].startswith('the same on all ranks: CUDA ')
    assert good['config'][0].endswith(' settings')
    assert good['all-reduce'] == ['all ranks: right on every rank']
    assert good['MegDetSyncBN'] == ['all ranks: right on every rank']
    assert good['BatchNorm'] == ['1 layers synchronise']
    assert 'images at once: 8, accumulation: 2' in good['batch plan'][0]
    assert len(good['latency']) == len(good['slowest rank']) == 1


@pytest.mark.slow
def test_a_rank_that_stops_is_named(tmp_path):
    (tmp_path / 'sitecustomize.py').write_text(STOP)
    done = run(SCRIPT, 2, '--timeout', 40, PYTHONPATH=f'{tmp_path}:{ROOT}')
    assert done.returncode == 1
    assert re.search(r'rank 1\b.* no sign of life', done.stdout)
    assert 'check_sums in all ranks' in done.stdout


def test_a_rank_that_does_not_come_is_named():
    store = dist.HashStore()
    store.set('0', 'a')
    store.add('there', 1)
    told = r'rank 1 of 3 did not arrive .*0 on a, 2 on'
    with pytest.raises(LaunchError, match=told):
        ranks.wait_for_ranks(store, 2, 3, 0.2)
    store.set('1', 'b')
    store.add('there', 1)
    ranks.wait_for_ranks(store, 2, 3, 0.2)


def in_groups(rank, world_size):
    """What four ranks find in BN groups of two; then with faults planted."""
    control = dist.new_group(backend='gloo')
    hosts = [f'host{r // 2}' for r in range(world_size)]
    here = ranks.Meeting(rank, hosts, CPU, control)
    first = rank // 2 * 2
    group = collectives.Group('pairs', [first, first + 1], bn_group(2, CPU))
    found = [str(here)]

    def look(findings):
        found.extend((f.level, f.text) for f in findings)

    look(collectives.check_sums(here, group))
    look(parity.check_parity(here, group))
    look(collectives.check_beside_buckets(here, group))
    look(collectives.check_kernels(here))
    all_reduce, versions = dist.all_reduce, ranks.versions

    def off(tensor, *args, **kwargs):
        work = all_reduce(tensor, *args, **kwargs)
        if work is not None:
            work.wait()
        tensor[-1] += 1
        return work

    if rank == 2:
        dist.all_reduce = off
    look(collectives.check_sums(here, group))
    look(collectives.check_beside_buckets(here, group))
    dist.all_reduce = all_reduce

    # Every rank normalises by its own batch.
    function.all_reduce = lambda sums, group, timers: None
    look(parity.check_parity(here, group))

    if rank == 3:
        ranks.versions = lambda: versions() | dict(numpy='1.0')
        os.environ['CUDA_LAUNCH_BLOCKING'] = '1'
    config = Config(dict(model=dict(depth=50 + rank // 3)))
    look(ranks.check_same(here, config))
    look(dist_doctor.check_machines(here))
    return found


# With faults, each on the ranks that it names.
FOUND = [
    *[(PASS, 'pairs: right on every rank')] * 3,
    (PASS, 'ranks 0-3: plain operations: cpu is no GPU'),
    # Ranks 2 and 3 give 3 and 4 at place 0.
    (FAIL, 'pairs: wrong on rank 2: 1 of 1 sums in float32 are wrong, the '
     'first 8 instead of 7'),
    (FAIL, 'pairs: wrong on rank 2: sums are not the number of ranks'),
    (FAIL, 'pairs: wrong on ranks 0-3: output in torch.float.*'),
    (FAIL, r'.*numpy is \S+ on ranks 0-2 and 1.0 on rank 3.*'),
    (FAIL, 'model.depth is 50 on ranks 0-2 and 51 on rank 3'),
    *[(PASS, '.*')] * 2,
    (WARN, 'rank 3: CUDA_LAUNCH_BLOCKING=1: the host waits.*'),
]  # fmt: skip


def test_groups_and_faults():
    by_rank = run_ranks(in_groups, 4)
    # Every rank comes to the same report.
    assert by_rank == [by_rank[0]] * 4
    where, *found = by_rank[0]
    assert where == 'host0: ranks 0, 1; host1: ranks 2, 3'
    for (level, text), (right, pattern) in zip(found, FOUND, strict=True):
        assert level == right
        assert re.fullmatch(pattern, text)


def test_groups_of_a_training():
    cfg = Config.fromfile(TINY_CONFIG)
    cfg.default_hooks.sync_bn_group = dict(type='SyncBNGroupHook', bn_size=8)
    groups, findings = dist_doctor.read_training(cfg, 4)
    assert groups == {2}
    assert levels(findings) == [PASS, PASS]
