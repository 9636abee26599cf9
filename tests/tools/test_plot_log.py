# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""tools/analysis/plot_log.py: which records it takes, and its figure."""

import cv2
import plot_log
import pytest
from mmengine.config import Config
from mmengine.visualization import LocalVisBackend

from mmdet_megdet.errors import ConfigError


def train(iteration, loss, **epoch):
    rest = dict(lr=0.1, base_lr=99.0, data_time=0.01, grad_norm=3.0, acc=90.0)
    rest |= {'loss': loss, 's0.loss_cls': loss / 2}
    return rest | epoch | dict(iter=iteration, step=iteration)


def val(step, ap):
    found = {'coco/bbox_mAP': ap, 'coco/bbox_mAP_50': 2 * ap}
    return found | {'coco/bbox_mAP_s': -1.0, 'time': 0.1, 'step': step}


def write_run(work_dir, name, records, resume=False, tail=''):
    """As MMEngine writes it."""
    folder = work_dir / name / 'vis_data'
    backend = LocalVisBackend(str(folder))
    backend.add_config(Config(dict(resume=resume)))
    for record in records:
        backend.add_scalars(record, step=record['step'])
    with (folder / 'scalars.json').open('a') as file:
        file.write(tail)


FIRST = [
    train(10, 4.0, epoch=1),
    train(20, 3.0, epoch=1),
    val(1, 0.1),
    train(30, 2.0, epoch=2),
    val(2, 0.2),
]
# Resumed from the end of epoch 1.
SECOND = [train(30, 2.5, epoch=2), val(2, 0.25)]
BY_ITERATION = [train(10, 3.0), val(10, 0.1), train(20, 2.0), val(20, 0.2)]
LATER = [train(20, 1.0)]


@pytest.mark.parametrize(
    ('earlier', 'later', 'resume', 'found'),
    [
        (FIRST, SECOND, True, FIRST[:3] + SECOND),
        # What is superseded goes before its successor is there.
        (FIRST, SECOND[:1], True, FIRST[:3] + SECOND[:1]),
        (FIRST, SECOND, False, SECOND),
        # Without training there is nothing to be shown of a run.
        (FIRST, [val(0, 0.9)], True, FIRST),
        (BY_ITERATION, LATER, True, BY_ITERATION[:2] + LATER),
    ],
)
def test_runs_after_one_another(earlier, later, resume, found, tmp_path):
    write_run(tmp_path, '20260101_000000', earlier)
    # Its last line is still being written.
    write_run(tmp_path, '20260102_000000', later, resume, '{"lr": 0.3, "lo')
    assert plot_log.load_work_dir(tmp_path) == found


def test_what_cannot_be_plotted(tmp_path):
    with pytest.raises(ConfigError, match=r'first log interval passed\?'):
        plot_log.main([str(tmp_path / 'absent')])
    write_run(tmp_path, 'run', FIRST[:1], tail='{"lr": 0.3, "lo\n{}\n')
    with pytest.raises(ConfigError, match='line 2: not a JSON object'):
        plot_log.main([str(tmp_path)])
    assert not list(tmp_path.rglob('*.png'))


def test_figure(tmp_path):
    figure = plot_log.draw(FIRST, 'a run')
    shown = {
        axis.get_ylabel(): {
            line.get_label(): line.get_xydata().T.tolist()
            for line in axis.get_lines()
        }
        for axis in figure.axes
    }
    steps = [10, 20, 30]
    assert shown == {
        'learning rate': {'lr': [steps, [0.1] * 3]},
        'loss': {
            'loss': [steps, [4.0, 3.0, 2.0]],
            's0.loss_cls': [steps, [2.0, 1.5, 1.0]],
        },
        'validation AP': {
            'coco/bbox_mAP': [[1, 2], [0.1, 0.2]],
            'coco/bbox_mAP_50': [[1, 2], [0.2, 0.4]],
        },
    }
    write_run(tmp_path, 'run', FIRST)
    out = tmp_path / 'new' / 'other.png'
    for options, path in (
        ([], tmp_path / 'log.png'),
        (['--out', str(out)], out),
    ):
        plot_log.main([str(tmp_path), *options])
        assert cv2.imread(str(path)).std() > 0
