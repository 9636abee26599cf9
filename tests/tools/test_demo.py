# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The demo's commands, in order. What each does is tested elsewhere."""

from __future__ import annotations

import stat

import pytest

from tests.tools.command import ROOT, TOOLS, run

# An interpreter that says how it was called, and leaves what the demo reads.
RECORDER = """#!/bin/sh
echo "python $@"
mkdir -p "$WORK_DIR/20260101/detections"
touch "$WORK_DIR/epoch_4.pth"
echo "$WORK_DIR/epoch_4.pth" > "$WORK_DIR/last_checkpoint"
sleep 0.01
touch "$WORK_DIR/20260101/detections/000001.png"
echo 'coco/bbox_mAP: 0.6300  coco/bbox_mAP_50: 0.9670'
"""
CONFIG = 'configs/megdet/shapes_r18_fpn.py'
PYTEST = 'python -m pytest --dist loadfile --no-loadscope-reorder'


def test_the_commands_in_order(tmp_path):
    recorder = tmp_path / 'recorder'
    recorder.write_text(RECORDER)
    recorder.chmod(recorder.stat().st_mode | stat.S_IXUSR)
    work_dir, shapes = tmp_path / 'run', tmp_path / 'shapes'
    done = run(
        TOOLS / 'demo.sh', work_dir, cwd=tmp_path, PYTHON=str(recorder),
        WORK_DIR=str(work_dir), SHAPES_ROOT=str(shapes),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    called = [
        line for line in done.stdout.splitlines() if line.startswith('python')
    ]
    ranks = 'python -m torch.distributed.run --standalone --nproc-per-node=2'
    assert called == [
        f'python -m mmdet_megdet.demo_data {shapes}',
        f'{ranks} tools/train.py --launcher pytorch {CONFIG} --work-dir '
        f'{work_dir}',
        f'{ranks} tools/test.py --launcher pytorch {CONFIG} '
        f'{work_dir}/epoch_4.pth --work-dir {work_dir} --show-dir detections',
        f'python tools/analysis/plot_log.py {work_dir} --out '
        f'{work_dir}/training.png',
        f'python tools/analysis/plot_bn_stats.py {work_dir}',
    ]
    assert 'AP: coco/bbox_mAP: 0.6300 coco/bbox_mAP_50: 0.9670' in done.stdout
    assert f'BatchNorm: {work_dir}/bn_stats' in done.stdout
    assert f'Detections: {work_dir}/20260101/detections' in done.stdout


@pytest.mark.parametrize(
    ('target', 'command'),
    [
        ('setup', None),
        ('demo', 'bash tools/demo.sh'),
        ('test', f"{PYTEST} -n 3 -m 'not nightly'"),
        ('test-fast', f"{PYTEST} -n 3 -m 'not slow and not nightly'"),
        ('test-nightly', f'{PYTEST} -n 2 -m nightly'),
        ('test-all', f'{PYTEST} -n 2'),
        ('types', 'mypy'),
    ],
)
def test_what_make_runs(target, command):
    words = ('make', '--dry-run', '--no-print-directory', target)
    done = run(*words, cwd=ROOT)
    set_up, *rest = done.stdout.splitlines()
    assert 'bash tools/setup/setup.sh' in set_up
    assert len(rest) == (command is not None)
    assert not rest or rest[0].endswith(command)
