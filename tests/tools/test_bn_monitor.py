# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What is plotted of the records of BNStatsMonitorHook."""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np
import pytest

from mmdet_megdet.monitor import read_records
from tests.data.bn_records import NAMES, RANKS, SHARE, SLOW, record, write
from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS / 'analysis'))  # as for a script there

from bn_monitor import figures, numbers
from matplotlib.pyplot import close

RUN = [record(100), record(200), record(300)]


def read(work_dir, contents):
    return read_records(write(work_dir, contents))


def test_heat_map_has_every_layer_in_forward_order(tmp_path):
    figure = figures.draw_share(read(tmp_path, RUN))
    heat, medians, scale = figure.axes
    (image,) = heat.get_images()
    wanted = [[SHARE[name, n] for n in (100, 200, 300)] for name in NAMES]
    assert image.get_array().tolist() == wanted
    assert image.get_clim() == (0, 1)
    assert [t.get_text() for t in heat.get_yticklabels()] == NAMES
    assert [t.get_text() for t in heat.get_xticklabels()] == [
        '100',
        '200',
        '300',
    ]
    assert [bar.get_width() for bar in medians.patches] == [
        row[1] for row in wanted
    ]
    # Legible: no label reaches into the next.
    figure.draw_without_rendering()
    boxes = [t.get_window_extent() for t in heat.get_yticklabels()]
    gaps = [a.y0 - b.y1 for a, b in pairwise(boxes)]
    assert min(gaps) >= 0
    assert boxes[0].height / figure.dpi * 72 >= 5  # points
    assert 'share' in scale.get_xlabel()
    close(figure)


def test_layers_that_come_and_go_are_hatched(tmp_path):
    some = [record(100, NAMES[:2]), record(200, NAMES[1:4])]
    some.append(record(300, [NAMES[0], NAMES[4]], between_share=None))
    loaded = read(tmp_path, some)
    # A new layer stands behind the one before it.
    order = [NAMES[0], NAMES[4], *NAMES[1:4]]
    assert numbers.forward_order(loaded) == order
    figure = figures.draw_share(loaded)
    shown = figure.axes[0].get_images()[0].get_array()
    assert shown.mask.tolist() == [
        [False, True, True],
        [True, True, True],
        [False, False, True],
        [True, False, True],
        [True, False, True],
    ]
    assert figure.axes[0].patch.get_hatch()
    close(figure)


def test_drift_names_the_worst_layers(tmp_path):
    figure = figures.draw_drift(read(tmp_path, RUN))
    for axis, factor in zip(figure.axes, (1, 2), strict=True):
        (area,) = axis.collections
        ends = area.get_datalim(axis.transData).get_points()
        assert ends.tolist() == [[100, factor / 300], [300, factor * 0.61]]
        median, *worst = axis.get_lines()
        assert median.get_ydata().tolist() == pytest.approx(
            [factor * 31 / n for n in (100, 200, 300)]
        )
        labels = [line.get_label() for line in worst]
        assert [label.split(':')[0] for label in labels] == NAMES[:-4:-1]
        assert worst[0].get_ydata()[0] == factor * 0.61
    assert figure.axes[1].get_xlabel() == 'iteration'
    close(figure)


def test_drift_is_judged_by_the_last_records(tmp_path):
    early = record(100)
    early['layers'][0]['mean_drift'] = 1e9
    late = [dict(record(300), iter=n) for n in range(300, 310)]
    loaded = read(tmp_path, [early, *late])
    assert NAMES[-1] in figures.explain_drift(loaded)
    figure = figures.draw_drift(loaded)
    # Linearly, all but that would lie on the bottom.
    assert [axis.get_yscale() for axis in figure.axes] == ['log', 'linear']
    close(figure)


def test_slow_rank_stands_out(tmp_path):
    loaded = read(tmp_path, RUN)
    assert numbers.slow_rank(loaded) == SLOW
    figure = figures.draw_collectives(loaded)
    time, part, ranks = figure.axes
    *lines, whole = time.get_lines()
    waits = [10 if rank == SLOW else 50 for rank in range(RANKS)]
    for line, wait in zip(lines, waits, strict=True):
        assert line.get_ydata().tolist() == [wait] * 3
    assert whole.get_ydata().tolist() == [200] * 3
    assert [line.get_ydata()[0] for line in part.get_lines()] == [
        pytest.approx(wait / 200) for wait in waits
    ]
    assert [bar.get_height() for bar in ranks.patches] == waits
    colours = [bar.get_facecolor() for bar in ranks.patches]
    assert colours.count(colours[SLOW]) == 1
    assert lines[SLOW].get_label() == f'rank {SLOW}: waits least'
    assert lines[SLOW].get_linewidth() > lines[0].get_linewidth()
    assert f'Rank {SLOW} waits least, 10 ms' in figures.explain_collectives(
        loaded
    )
    close(figure)


def test_ranks_that_wait_alike(tmp_path):
    even = record(100)
    even['seconds']['collectives'] = [0.05, 0.04, 0.026, 0.06]
    loaded = read(tmp_path, [even])
    assert numbers.slow_rank(loaded) is None
    assert 'no rank is much slower' in figures.explain_collectives(loaded)
    figure = figures.draw_collectives(loaded)
    bars = figure.axes[2].patches
    assert len({bar.get_facecolor() for bar in bars}) == 1
    close(figure)


def test_many_ranks_and_other_hardware_after_a_resume(tmp_path):
    loaded = read(tmp_path, [RUN[0], record(200, ranks=16)])
    figure = figures.draw_collectives(loaded)
    time, _, ranks = figure.axes
    assert len(ranks.patches) == 16
    labels = time.get_legend_handles_labels()[1]
    assert labels == ['other ranks', 'rank 2: waits least', 'iteration']
    # Rank 15 was not there at first.
    assert np.isnan(time.get_lines()[15].get_ydata()).tolist() == [True, False]
    close(figure)
