# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Findings from made-up numbers, where planting the fault would be long.

Faults in real training runs: tests/distributed/test_bn_stats_monitor.py.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from mmdet_megdet.hooks import BNStatsMonitorHook
from mmdet_megdet.monitor import CHECKS, Numbers, Plan, judge
from mmdet_megdet.monitor.exchange import LAYER, RANK, majority
from mmdet_megdet.monitor.table import (
    aggregates,
    batch_plan,
    forward_order,
    layer_rows,
    summary,
)


def healthy(ranks=4, kinds=('MegDetSyncBN',) * 3, images=2):
    """Every rank's own batch, and one set of statistics for all."""
    layers = np.zeros((ranks, len(kinds)), LAYER)
    layers['first_call'] = np.arange(len(kinds))
    for name in ('calls', 'training', 'trained', 'communicates', 'spreads'):
        layers[name] = 1
    layers['ranks'] = ranks
    layers['count'], layers['group_count'] = 10, 10 * ranks
    # Every rank's own; the group's are the same on all.
    layers['local_hash'] = 1 + np.arange(ranks)[:, None]
    layers['local_sketch'] = layers['group_sketch'] = 1.5
    layers['group_size'] = 3
    layers['broken_call'] = layers['first_dead'] = -1
    layers['seconds'] = 0.01
    layers['running_var_max'] = 1
    facts = np.zeros(ranks, RANK)
    facts['seconds'] = 1
    moments = [np.ones((ranks, 2, 4)) for _ in kinds]
    return Numbers(
        [f'n{i}' for i in range(len(kinds))],
        list(kinds),
        [kind == 'MegDetSyncBN' for kind in kinds],
        images,
        facts,
        layers,
        moments,
    )


def judged(numbers, **options):
    options = dict(max_collective_share=0.3, max_running_var=1e6) | options
    found = judge(numbers, **options)
    assert all('\n' not in finding.message for finding in found)
    return found


def the_one(numbers, **options):
    (finding,) = judged(numbers, **options)
    return finding


def test_the_hooks_docstring_has_every_check():
    """In the order in which findings of one level stand."""
    rule, rows = f'{"=" * 17}  {"=" * 7}  {"=" * 42}\n', []
    _, _, body, _ = inspect.getdoc(BNStatsMonitorHook).split(rule)
    for line in body.splitlines():
        name, level, what = line[:17], line[19:26], line[28:]
        if name.strip():
            rows.append([name.strip(), level.strip(), what])
        else:
            rows[-1][2] += f' {what}'
    assert rows == [[c.name, c.level, c.what] for c in CHECKS]


def test_healthy_numbers_have_no_finding():
    assert judged(healthy()) == []
    assert judged(healthy(ranks=1)) == []


@pytest.mark.parametrize(
    ('values', 'usual', 'others'),
    [
        ([3, 3, 3], 3, []),
        ([3, 5, 3], 3, [1]),
        ([5, 3, 3, 4], 3, [0, 3]),
        # Nobody can tell who is right.
        ([3, 5], 3, [0, 1]),
        ([5, 5, 3, 3], 3, [0, 1, 2, 3]),
    ],
)
def test_majority(values, usual, others):
    assert majority(np.array(values, float)) == (usual, others)


def test_statistics_are_compared_within_a_group_alone():
    numbers = healthy()
    numbers.layers['ranks'] = 2
    numbers.layers['bn_size'] = 4
    numbers.layers['group_count'] = 20
    for name in ('group_hash', 'buffer_hash'):
        numbers.layers[name][2:] = 7
    assert judged(numbers) == []
    numbers.layers['buffer_hash'][3, 1] = 8
    numbers.layers['buffer_sketch'][3, 1] = [0.5, -0.5, 0.5, 0.5]
    finding = the_one(numbers)
    assert (finding.check, finding.layers) == ('buffers-disagree', ['n1'])
    # Of two that differ.
    assert finding.ranks == [2, 3]
    assert 'by about 0.5' in finding.message


def test_many_layers_with_one_problem_are_one_finding():
    numbers = healthy()
    numbers.layers['group_hash'][2] = 9
    finding = the_one(numbers)
    assert finding.layers == ['n0', 'n1', 'n2']
    assert finding.ranks == [2]


def test_a_group_that_holds_other_positions_than_its_ranks():
    numbers = healthy()
    numbers.layers['group_count'][:, 1] = 30
    finding = the_one(numbers)
    assert (finding.check, finding.layers) == ('not-synchronised', ['n1'])
    assert 'over 30 positions, and the ranks have 40' in finding.message


def test_a_rank_that_does_not_communicate():
    numbers = healthy()
    numbers.layers['communicates'][3, 1] = 0
    numbers.ranks['order'][3] = 1
    order, alone = judged(numbers)
    assert order.check == 'call-order'
    assert (alone.check, alone.layers, alone.ranks) == (
        'not-synchronised', ['n1'], [3],
    )  # fmt: skip


def test_ranks_that_end_at_different_layers():
    numbers = healthy()
    numbers.ranks['order'][0] = 1
    numbers.layers[0, 2]['communicates'] = 0
    numbers.layers[0, 2]['calls'] = 0
    finding = judged(numbers)[0]
    assert (finding.layers, finding.ranks) == (['n2'], [0])
    assert 'number 3 is n2 on rank 1 and nothing more on rank 0' in (
        finding.message
    )


def test_a_layer_that_is_called_more_often():
    numbers = healthy()
    numbers.ranks['order'][1] = 1
    numbers.layers['calls'][1, 2] = 3
    finding = judged(numbers)[0]
    assert (finding.layers, finding.ranks) == (['n2'], [1])
    assert 'n2 is called 1 times on rank 0 and 3 times on rank 1' in (
        finding.message
    )


def test_some_ranks_with_the_same_data():
    numbers = healthy()
    numbers.layers['local_hash'][3] = numbers.layers['local_hash'][1]
    finding = the_one(numbers)
    assert (finding.check, finding.level) == ('same-data', 'warning')
    assert finding.ranks == [1, 3]
    # What is constant is the same without being the same data.
    numbers.layers['spreads'][:, 0] = 0
    assert judged(numbers) == []
    # Ranks without images are alike, too.
    numbers = healthy()
    numbers.layers['local_hash'][2:] = 0
    numbers.layers['count'][2:] = 0
    numbers.layers['group_count'] = 20
    assert judged(numbers) == []


def test_ranks_that_meet_nan_at_once():
    numbers = healthy()
    numbers.layers['broken_call'][[1, 3], 1] = 1
    numbers.layers['broken_call'][:, 2] = 2
    numbers.layers['group_sketch'][:, 1:] = np.nan
    finding = the_one(numbers)
    assert (finding.layers, finding.ranks) == (['n1'], [1, 3])
    assert '2 of 3 layers' in finding.message


def test_broken_buffers_alone():
    numbers = healthy()
    numbers.layers['broken_buffers'][2, 1] = 1
    finding = the_one(numbers)
    assert (finding.check, finding.layers, finding.ranks) == (
        'non-finite', ['n1'], [2],
    )  # fmt: skip
    assert 'the running statistics of n1 on rank 2' in finding.message


def test_a_bn_size_that_does_not_divide():
    numbers = healthy()
    numbers.layers['bn_size'] = 6
    finding = the_one(numbers)
    assert (finding.check, finding.level) == ('bn-size', 'warning')
    assert 'bn_size=6' in finding.message
    assert 'the nearest BN sizes are 4 and 8' in finding.message
    # Without the images per GPU nothing can be said.
    assert judged(numbers._replace(images_per_gpu=None)) == []


def test_a_layer_in_eval_mode_that_was_never_resolved():
    numbers = healthy()
    numbers.layers['bn_size'][:, 0] = 4
    for name in ('ranks', 'communicates', 'training'):
        numbers.layers[name][:, 0] = 0
    checks = [f.check for f in judged(numbers)]
    assert checks == ['bn-size', 'eval-mode']
    assert 'number of ranks is not resolved' in judged(numbers)[0].message


def test_levels_of_what_is_no_error():
    numbers = healthy(kinds=['MegDetSyncBN', 'BatchNorm2d', 'SyncBatchNorm'])
    numbers.layers['communicates'][:, 1:] = 0
    numbers.layers['ranks'][:, 1] = 1
    numbers.layers['trained'][:, 0] = 0
    found = {f.check: (f.level, f.layers) for f in judged(numbers)}
    assert found == {
        'plain-batch-norm': ('warning', ['n1']),
        'frozen-affine': ('info', ['n0']),
        'foreign-sync-bn': ('info', ['n2']),
    }
    states = [row.state for row in layer_rows(numbers)]
    assert states == ['synced', 'alone', 'synced']
    # Plain layers in eval mode are how detectors are usually fine-tuned.
    numbers.layers['training'][:, 1] = 0
    found = {f.check: f.level for f in judged(numbers)}
    assert found['eval-mode'] == 'info'
    assert 'plain-batch-norm' not in found


def test_buffers_of_another_synchronised_layer():
    numbers = healthy(kinds=['SyncBatchNorm'] * 2)
    numbers.layers['communicates'] = 0
    # The second one's group is half of the ranks, and which is not known.
    numbers.layers['ranks'][:, 1] = 2
    numbers.layers['buffer_hash'][1] = 5
    found = [f for f in judged(numbers) if f.level == 'error']
    assert [(f.check, f.layers, f.ranks) for f in found] == [
        ('buffers-disagree', ['n0'], [1])
    ]


def test_communication_that_is_slow_on_all_ranks():
    numbers = healthy()
    numbers.layers['seconds'] = 0.2
    finding = the_one(numbers)
    assert (finding.check, finding.ranks) == ('collective-time', [])
    assert '60% of the iteration' in finding.message
    assert 'the communication itself' in finding.message
    assert judged(numbers, max_collective_share=0.7) == []


def test_running_variance_above_what_is_allowed():
    numbers = healthy()
    numbers.layers['running_var_max'][:, 1] = 50
    assert judged(numbers) == []
    finding = the_one(numbers, max_running_var=20)
    assert (finding.check, finding.layers) == ('running-var', ['n1'])


def test_forward_order_is_that_of_rank_0():
    numbers = healthy()
    numbers.layers['first_call'] = [[2, -1, 1], [1, 0, 2]] * 2
    assert forward_order(numbers) == [2, 0, 1]
    numbers.layers['calls'] = [1, 0, 0]
    numbers.layers['first_call'] = [0, -1, -1]
    found = [f for f in judged(numbers) if f.check == 'not-called']
    assert found[0].layers == ['n1', 'n2']


def test_the_plan_of_a_mixed_model():
    numbers = healthy(kinds=['MegDetSyncBN', 'BatchNorm2d', 'MegDetSyncBN'])
    numbers.layers['bn_size'][:, 0] = 4
    sizes = {'4': 1, 'all': 1}
    assert batch_plan(numbers, 3) == Plan(24, 3, bn_sizes=sizes)
    unknown = numbers._replace(images_per_gpu=None)
    assert batch_plan(unknown, 3) == Plan(None, 3, sizes)


def test_aggregates_and_summary():
    numbers = healthy()
    numbers.moments[0][:, 0] = [[1], [1], [3], [3]]
    numbers.layers['mean_drift'] = [0.5, 1.0, 1.5]
    numbers.layers['seconds'][2] = 0.05
    rows, findings = layer_rows(numbers), judged(numbers)
    values = aggregates(numbers, rows, findings)
    # Half of the first layer's variance of 2, and none of the others'.
    assert values == dict(
        between_share=pytest.approx(0.5 / 3),
        mean_drift=pytest.approx(1),
        collective_share=pytest.approx(0.15),
        findings=0,
    )
    assert rows[0].var_spread == pytest.approx(0.5)
    assert summary(7, rows, findings) == (
        'iteration 7: 3 BatchNorm layers, 3 synced; statistics over 4 ranks '
        'in 3; verdict: sound.'
    )
