# Copyright (c) mmdet_megdet contributors. All rights reserved.
import importlib.util
import json
from pathlib import Path

import cv2
import pytest

TOOL = Path(__file__).parents[2] / 'tools' / 'analysis' / 'plot_log.py'


def load_tool():
    spec = importlib.util.spec_from_file_location('plot_log', TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


plot_log = load_tool()


def train(iteration, lr, loss, epoch=1):
    return {
        'lr': lr,
        'base_lr': 99.0,
        'data_time': 0.01,
        'grad_norm': 3.0,
        'loss': loss,
        's0.loss_cls': loss / 2,
        'acc': 90.0,
        'epoch': epoch,
        'iter': iteration,
        'step': iteration,
    }


def val(epoch, ap):
    return {
        'coco/bbox_mAP': ap,
        'coco/bbox_mAP_50': 2 * ap,
        'coco/bbox_mAP_s': -1.0,
        'time': 0.1,
        'step': epoch,
    }


def write_run(work_dir, name, records, resume=False, tail=''):
    folder = work_dir / name / 'vis_data'
    folder.mkdir(parents=True)
    lines = [json.dumps(record) + '\n' for record in records]
    (folder / 'scalars.json').write_text(''.join(lines) + tail)
    (folder / 'config.py').write_text(f'resume = {resume}\n')


FIRST = [
    train(10, 0.1, 4.0),
    train(20, 0.2, 3.0),
    val(1, 0.1),
    train(30, 0.3, 2.0, epoch=2),
    train(40, 0.4, 1.0, epoch=2),
    val(2, 0.2),
]
# Resumed from the end of epoch 1.
SECOND = [
    train(30, 0.31, 2.5, epoch=2),
    train(40, 0.41, 1.5, epoch=2),
    val(2, 0.25),
    train(50, 0.5, 1.0, epoch=3),
]


def test_curves_of_one_run(tmp_path):
    write_run(tmp_path, '20260101_000000', FIRST)
    curves = plot_log.extract(plot_log.load_work_dir(tmp_path))
    steps = [10, 20, 30, 40]
    assert curves.rates == {'lr': (steps, [0.1, 0.2, 0.3, 0.4])}
    assert curves.losses == {
        'loss': (steps, [4.0, 3.0, 2.0, 1.0]),
        's0.loss_cls': (steps, [2.0, 1.5, 1.0, 0.5]),
    }
    assert curves.metrics == {
        'coco/bbox_mAP': ([1, 2], [0.1, 0.2]),
        'coco/bbox_mAP_50': ([1, 2], [0.2, 0.4]),
    }
    assert curves.by_epoch


def test_resumed_run_follows_the_earlier_one(tmp_path):
    write_run(tmp_path, '20260101_000000', FIRST)
    write_run(tmp_path, '20260102_000000', SECOND, resume=True)
    curves = plot_log.extract(plot_log.load_work_dir(tmp_path))
    assert curves.rates['lr'] == (
        [10, 20, 30, 40, 50],
        [0.1, 0.2, 0.31, 0.41, 0.5],
    )
    assert curves.metrics['coco/bbox_mAP'] == ([1, 2], [0.1, 0.25])


def test_superseded_validation_goes_before_its_successor_is_there(tmp_path):
    write_run(tmp_path, '20260101_000000', FIRST)
    write_run(tmp_path, '20260102_000000', SECOND[:1], resume=True)
    curves = plot_log.extract(plot_log.load_work_dir(tmp_path))
    assert curves.losses['loss'] == ([10, 20, 30], [4.0, 3.0, 2.5])
    assert curves.metrics['coco/bbox_mAP'] == ([1], [0.1])


def test_fresh_run_stands_alone(tmp_path):
    write_run(tmp_path, '20260101_000000', FIRST)
    write_run(tmp_path, '20260102_000000', [train(15, 0.7, 5.0)])
    curves = plot_log.extract(plot_log.load_work_dir(tmp_path))
    assert curves.rates == {'lr': ([15], [0.7])}
    assert not curves.metrics


def test_runs_without_training_are_passed_over(tmp_path):
    write_run(tmp_path, '20260101_000000', FIRST)
    write_run(tmp_path, '20260102_000000', [val(0, 0.9)])
    write_run(tmp_path, '20260103_000000', [])
    records = plot_log.load_work_dir(tmp_path)
    assert records == FIRST


def test_iteration_based_run_is_joined_by_iteration():
    def plain(iteration, loss):
        return {'loss': loss, 'iter': iteration, 'step': iteration}

    earlier = [plain(10, 3.0), val(10, 0.1), plain(20, 2.0), val(20, 0.2)]
    later = [plain(20, 1.0)]
    joined = plot_log.join(earlier, later)
    assert joined == [plain(10, 3.0), val(10, 0.1), plain(20, 1.0)]
    assert not plot_log.extract(joined).by_epoch


def test_line_cut_off_at_the_end_is_tolerated(tmp_path):
    write_run(tmp_path, 'run', FIRST[:2], tail='{"lr": 0.3, "lo')
    assert plot_log.load_work_dir(tmp_path) == FIRST[:2]


def test_broken_line_elsewhere_is_named(tmp_path, capsys):
    broken = '{"lr": 0.3, "lo\n' + json.dumps(FIRST[1]) + '\n'
    write_run(tmp_path, 'run', FIRST[:1], tail=broken)
    assert plot_log.main([str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert 'scalars.json, line 2: not a JSON object' in error


def test_nothing_to_plot(tmp_path, capsys):
    assert plot_log.main([str(tmp_path / 'absent')]) == 1
    assert 'absent: no such folder' in capsys.readouterr().err
    assert plot_log.main([str(tmp_path)]) == 1
    assert 'first log interval passed?' in capsys.readouterr().err
    write_run(tmp_path, 'run', [], tail='{"lr": 0.')
    assert plot_log.main([str(tmp_path)]) == 1
    assert 'first log interval passed?' in capsys.readouterr().err
    assert not list(tmp_path.rglob('*.png'))


@pytest.mark.parametrize(
    ('values', 'scale'),
    [
        # A linear warm-up of 100 points, then steps as in the recipe.
        ([0.04 * i / 100 for i in range(1, 101)] + [0.04] * 100, 'linear'),
        ([0.04] * 100 + [0.004] * 50 + [0.0004] * 50, 'linear'),
        ([0.04] * 100 + [0.0004] * 50, 'log'),
        ([0.0] + [0.0004] * 100 + [0.04], 'linear'),
        ([], 'linear'),
    ],
)
def test_lr_scale(values, scale):
    curve = (list(range(len(values))), values)
    assert plot_log.lr_scale({'lr': curve}) == scale


def test_figure_shows_the_curves():
    figure = plot_log.draw(plot_log.extract(FIRST), 'a run')
    rate, loss, metric = figure.axes
    (line,) = rate.get_lines()
    assert line.get_xydata().tolist() == [
        [10, 0.1],
        [20, 0.2],
        [30, 0.3],
        [40, 0.4],
    ]
    assert [line.get_label() for line in loss.get_lines()] == [
        'loss',
        's0.loss_cls',
    ]
    assert [line.get_label() for line in metric.get_lines()] == [
        'coco/bbox_mAP',
        'coco/bbox_mAP_50',
    ]
    labels = [axis.get_xlabel() for axis in figure.axes]
    assert labels == ['iteration', 'iteration', 'epoch']
    plot_log.plt.close(figure)


def test_command_writes_a_figure(tmp_path, capsys):
    write_run(tmp_path, 'run', FIRST)
    assert plot_log.main([str(tmp_path)]) == 0
    assert str(tmp_path / 'log.png') in capsys.readouterr().out
    out = tmp_path / 'new' / 'other.png'
    assert plot_log.main([str(tmp_path), '--out', str(out)]) == 0
    assert cv2.imread(str(out)).std() > 0
    assert plot_log.main([str(tmp_path), '--out', str(out) + '.nope']) == 1
    assert 'nope' in capsys.readouterr().err


def test_stock_visualizer_writes_what_is_read(tmp_path):
    from mmengine.config import Config
    from mmengine.visualization import LocalVisBackend

    backend = LocalVisBackend(str(tmp_path / '20260101_000000' / 'vis_data'))
    backend.add_config(Config(dict(resume=False)))
    for record in FIRST:
        backend.add_scalars(record, step=record['step'])
    assert plot_log.load_work_dir(tmp_path) == FIRST
