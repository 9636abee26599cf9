# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Findings from made-up numbers, where planting the fault would be long.

Faults in real training runs: tests/distributed/test_bn_stats_monitor.py.
"""

from __future__ import annotations

import numpy as np

from mmdet_megdet.monitor import Numbers, judge, layer_rows
from mmdet_megdet.monitor.exchange import LAYER, RANK


def healthy(ranks=4, kinds=('MegDetSyncBN',) * 3, images=2):
    """Every rank's own batch, and one set of statistics for all."""
    layers = np.zeros((ranks, len(kinds)), LAYER)
    layers['first_call'] = np.arange(len(kinds))
    for name in ('calls', 'training', 'communicates', 'var'):
        layers[name] = 1
    layers['ranks'] = ranks
    layers['count'], layers['group_count'] = 10, 10 * ranks
    # Every rank's own; the group's are the same on all.
    layers['local_hash'] = 1 + np.arange(ranks)[:, None]
    layers['local_sketch'] = layers['group_sketch'] = 1.5
    layers['group_size'] = 3
    layers['broken_call'] = -1
    layers['running_var_max'] = 1
    facts = np.zeros(ranks, RANK)
    facts['seconds'], facts['collectives'] = 1, 0.03
    return Numbers(
        [f'n{i}' for i in range(len(kinds))],
        list(kinds),
        [kind == 'MegDetSyncBN' for kind in kinds],
        images,
        facts,
        layers,
    )


def judged(numbers, share=0.3):
    return judge(numbers, max_collective_share=share, max_running_var=1e6)


def the_one(numbers):
    """Its check, layers and ranks; and its message."""
    (finding,) = judged(numbers)
    return (finding.check, finding.layers, finding.ranks), finding.message


def test_statistics_are_compared_within_a_group_alone():
    numbers = healthy()
    numbers.layers['ranks'] = 2
    numbers.layers['bn_size'] = 4
    numbers.layers['group_count'] = 20
    for name in ('group_hash', 'buffer_hash'):
        numbers.layers[name][2:] = 7
    assert judged(numbers) == []
    numbers.layers['buffer_hash'][3, :2] = 8
    numbers.layers['buffer_sketch'][3, 1] = [0.5, -0.5, 0.5, 0.5]
    found, message = the_one(numbers)
    # Of two ranks that differ; two layers with one problem are one finding.
    assert found == ('buffers-disagree', ['n0', 'n1'], [2, 3])
    assert 'by about 0.5' in message


def test_ranks_that_end_at_different_layers():
    numbers = healthy()
    numbers.ranks['order'][0] = 1
    found, message = the_one(numbers)
    assert found == ('call-order', [], [0])
    assert 'called again' in message
    for what in ('communicates', 'calls'):
        numbers.layers[what][0, 2] = 0
    finding = judged(numbers)[0]
    assert (finding.layers, finding.ranks) == (['n2'], [0])
    assert 'n2 on rank 1 and nothing more on rank 0' in finding.message


def test_some_ranks_with_the_same_data():
    numbers = healthy()
    numbers.layers['local_hash'][3] = numbers.layers['local_hash'][1]
    found, _ = the_one(numbers)
    assert found == ('same-data', ['n0'], [1, 3])
    assert judged(numbers)[0].level == 'warning'
    # What is constant is the same without being the same data.
    numbers.layers['var'][:, 0] = 0
    assert judged(numbers) == []
    # Ranks without images are alike, too.
    numbers = healthy()
    for what in ('local_hash', 'count'):
        numbers.layers[what][2:] = 0
    assert judged(numbers) == []


def test_where_nan_came_in_first():
    numbers = healthy()
    numbers.layers['broken_buffers'][2, 1] = 1
    found, message = the_one(numbers)
    assert found == ('non-finite', ['n1'], [2])
    assert 'the running statistics of n1 on rank 2' in message
    numbers.layers['broken_call'][[1, 3], 1] = 1
    numbers.layers['broken_call'][:, 2] = 2
    numbers.layers['group_sketch'][:, 1:] = np.nan
    found, message = the_one(numbers)
    assert found == ('non-finite', ['n1'], [1, 3])
    assert '2 of 3 layers' in message


def test_a_bn_size_that_groups_do_not_hold():
    numbers = healthy()
    numbers.layers['bn_size'] = 6
    found, message = the_one(numbers)
    assert found == ('bn-size', ['n0', 'n1', 'n2'], [])
    assert 'over 4 ranks, where bn_size=6 asks for 3' in message
    # Without the images per GPU nothing can be said.
    assert judged(numbers._replace(images_per_gpu=None)) == []


def test_another_librarys_layers():
    numbers = healthy(kinds=['MegDetSyncBN', 'BatchNorm2d', 'SyncBatchNorm'])
    numbers.layers['communicates'][:, 1:] = 0
    numbers.layers['ranks'][:, 1] = 1
    # Each rank's own, which is no fault of theirs.
    numbers.layers['buffer_hash'][:, 1:] = np.arange(4)[:, None]
    found = [(f.check, f.level, f.layers) for f in judged(numbers)]
    assert found == [
        ('plain-batch-norm', 'warning', ['n1']),
        ('plain-batch-norm', 'warning', ['n2']),
    ]
    # In the order of rank 0.
    numbers.layers['first_call'] = [[2, 0, 1], [0, 1, 2]] * 2
    states = [(row.name, row.state) for row in layer_rows(numbers)]
    assert states == [('n1', 'alone'), ('n2', 'synced'), ('n0', 'synced')]
    # Plain layers in eval mode are how detectors are usually fine-tuned.
    numbers.layers['training'][:, 1] = 0
    assert the_one(numbers)[0] == ('plain-batch-norm', ['n2'], [])


def test_communication_that_is_slow_on_all_ranks():
    numbers = healthy()
    numbers.ranks['collectives'] = 0.6
    found, message = the_one(numbers)
    assert found == ('collective-time', [], [])
    assert '60% of the iteration' in message
    assert judged(numbers, share=0.7) == []
