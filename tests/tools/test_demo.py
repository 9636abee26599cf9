# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The commands of the demo and of make. What each does is tested elsewhere."""

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


def test_the_commands_in_order(tmp_path):
    recorder, run_dir = tmp_path / 'recorder', tmp_path / 'run'
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    given = dict(WORK_DIR=str(run_dir), SHAPES_ROOT='SHAPES')
    done = run(TOOLS / 'demo.sh', run_dir, PYTHON=str(recorder), **given)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    ranks = 'python -m torch.distributed.run --standalone --nproc-per-node=2'
    assert [line for line in lines if line.startswith('python')] == [
        'python -m mmdet_megdet.demo_data SHAPES',
        f'{ranks} tools/train.py --launcher pytorch {CONFIG} --work-dir '
        f'{run_dir}',
        f'{ranks} tools/test.py --launcher pytorch {CONFIG} '
        f'{run_dir}/epoch_4.pth --work-dir {run_dir} --show-dir detections',
        f'python tools/analysis/plot_log.py {run_dir} --out '
        f'{run_dir}/training.png',
        f'python tools/analysis/plot_bn_stats.py {run_dir}',
    ]
    assert lines[-4] == 'AP: coco/bbox_mAP: 0.6300 coco/bbox_mAP_50: 0.9670'
    assert lines[-1] == f'Detections: {run_dir}/20260101/detections'


def test_what_make_runs():
    """All tests are those that are nightly and those that are not."""
    for target, end in {
        'test': " -m 'not nightly'",
        'test-fast': " -m 'not slow and not nightly'",
        'test-nightly': ' -m nightly',
        'test-all': ' -n 2',
        'demo': ' bash tools/demo.sh',
    }.items():
        words = ('make', '--dry-run', '--no-print-directory', target)
        set_up, command = run(*words, cwd=ROOT).stdout.splitlines()
        assert 'bash tools/setup/setup.sh' in set_up
        assert command.endswith(end)
