# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The plan's arithmetic, and what the user is told where it does not divide.

The recipe is MegDet's: 256 images an update, BatchNorm over 32.
"""

import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mmdet_megdet.recipe import BatchPlan, PlanError

# GPUs, images per GPU: accumulation, ranks per BN group.
RUNS = {
    (1, 32): (8, 1),
    (2, 32): (4, 1),
    (4, 8): (8, 4),
    (4, 32): (2, 1),
    (8, 4): (8, 8),
    (8, 8): (4, 4),
    (8, 32): (1, 1),
    (128, 2): (1, 16),
}
# GPUs, images per GPU: a problem as it is told, the options that would run.
AT_ONCE = '{} GPU(s) x {} image(s) per GPU = {} at once '
TOO_FEW = AT_ONCE + 'cannot give a BN size of 32'
TOO_MANY = AT_ONCE + 'are more than a total batch of 256'
REST = AT_ONCE + 'do not divide a total batch of 256 '
REFUSED = {
    (1, 2): (TOO_FEW, '--images-per-gpu 32', '--bn-size 2', 'on 16 GPU(s)'),
    (1, 4): (TOO_FEW, '--images-per-gpu 32', '--bn-size 4', 'on 8 GPU(s)'),
    (1, 8): (TOO_FEW, '--images-per-gpu 32', '--bn-size 8', 'on 4 GPU(s)'),
    (2, 2): (TOO_FEW, '--images-per-gpu 16', '--bn-size 4', 'on 16 GPU(s)'),
    (2, 4): (TOO_FEW, '--images-per-gpu 16', '--bn-size 8', 'on 8 GPU(s)'),
    (2, 8): (TOO_FEW, '--images-per-gpu 16', '--bn-size 16', 'on 4 GPU(s)'),
    (4, 2): (TOO_FEW, '--images-per-gpu 8', '--bn-size 8', 'on 16 GPU(s)'),
    (4, 4): (TOO_FEW, '--images-per-gpu 8', '--bn-size 16', 'on 8 GPU(s)'),
    (6, 2): (
        REST + '(256 = 21 x 12 + 4)',
        'on 16 GPU(s)',
        '--images-per-gpu 8 on 4 GPU(s)',
        '--bn-size 8 on 4 GPU(s)',
        '--bn-size 12 --total-batch 252',
        '--images-per-gpu 16 --total-batch 288',
    ),
    (6, 4): (
        REST + '(256 = 10 x 24 + 16)',
        'on 8 GPU(s)',
        '--images-per-gpu 8 on 4 GPU(s)',
        '--bn-size 16 on 4 GPU(s)',
        '--bn-size 24 --total-batch 264',
        '--images-per-gpu 16 --total-batch 288',
    ),
    (6, 8): (
        REST + '(256 = 5 x 48 + 16)',
        'on 8 GPU(s)',
        'on 4 GPU(s)',
        '--bn-size 24 --total-batch 240',
        '--images-per-gpu 16 --total-batch 288',
    ),
    (6, 32): (
        REST + '(256 = 1 x 192 + 64)',
        'on 8 GPU(s)',
        'on 4 GPU(s)',
        '--total-batch 192',
    ),
    (8, 2): (TOO_FEW, '--images-per-gpu 4', '--bn-size 16', 'on 16 GPU(s)'),
    (128, 4): (
        TOO_MANY,
        '--images-per-gpu 2',
        'on 64 GPU(s)',
        '--total-batch 512',
    ),
    (128, 8): (
        TOO_MANY,
        '--images-per-gpu 2',
        'on 32 GPU(s)',
        '--total-batch 1024',
    ),
    (128, 32): (
        TOO_MANY,
        '--images-per-gpu 2',
        'on 8 GPU(s)',
        '--total-batch 4096',
    ),
}


def test_the_two_tables_are_the_whole_table():
    asked = {(g, i) for g in (1, 2, 4, 6, 8, 128) for i in (2, 4, 8, 32)}
    assert RUNS.keys() | REFUSED.keys() == asked
    assert not RUNS.keys() & REFUSED.keys()


@pytest.mark.parametrize(('gpus', 'images'), RUNS)
def test_what_runs(gpus, images):
    plan = BatchPlan(gpus, images, total_batch_size=256, bn_size=32)
    accumulation, ranks = RUNS[gpus, images]
    assert plan.accumulation == accumulation
    assert plan.ranks_per_bn_group == ranks
    assert plan.images_per_bn_group == 32
    assert plan.iterations(updates=1000) == 1000 * accumulation


@pytest.mark.parametrize(('gpus', 'images'), REFUSED)
def test_what_is_refused_and_what_would_run(gpus, images):
    with pytest.raises(PlanError) as refusal:
        BatchPlan(gpus, images, total_batch_size=256, bn_size=32)
    problem, *options = REFUSED[gpus, images]
    problem = problem.format(gpus, images, gpus * images)
    told, would_run = str(refusal.value).split('. Nothing is rounded. ')
    assert problem in told
    assert would_run == (
        f'What would run, least changed first: {"; or ".join(options)}.'
    )


def test_both_problems_are_told():
    with pytest.raises(PlanError) as refusal:
        BatchPlan(6, 8, 256, 32)
    _, second = refusal.value.problems
    assert second == (
        '6 GPU(s) with 8 image(s) each cannot give a BN size of 32: they do '
        'not split into groups of 4 GPUs'
    )
    with pytest.raises(PlanError) as refusal:
        BatchPlan(8, 4, 256, 30)
    assert refusal.value.problems == [
        '4 image(s) per GPU cannot give a BN size of 30, which is no whole '
        'number of GPUs'
    ]


def test_the_option_for_the_total_batch_is_the_callers():
    with pytest.raises(PlanError) as refusal:
        BatchPlan(128, 4)
    text = refusal.value.explain('total_batch_size={}')
    assert text.endswith('or total_batch_size=512.')


POSITIVE = st.integers(1, 40)


@given(POSITIVE, POSITIVE, st.integers(1, 600), st.none() | st.integers(1, 80))
@example(6, 4, 256, 32)
@example(1, 1, 1, 1)
@example(1, 7, 1, 80)
@example(40, 40, 1, None)
def test_plans_multiply_out_and_suggestions_are_plans(
    world_size, images, total, bn_size
):
    asked = (world_size, images, total, bn_size)
    try:
        plan = BatchPlan(*asked)
    except PlanError as error:
        refusal = error
    else:
        assert_multiplies_out(plan)
        return
    assert refusal.asked == asked
    # There is always a way: one image on one GPU divides everything.
    assert refusal.nearest
    assert asked not in refusal.nearest
    changes = [
        sum(a != b for a, b in zip(asked, split, strict=True))
        for split in refusal.nearest
    ]
    assert changes == sorted(changes)
    for split in refusal.nearest:
        assert_multiplies_out(BatchPlan(*split))


def assert_multiplies_out(plan):
    at_once = plan.world_size * plan.images_per_gpu
    assert plan.images_at_once == at_once
    assert at_once * plan.accumulation == plan.total_batch_size
    assert plan.world_size % plan.ranks_per_bn_group == 0
    in_group = plan.ranks_per_bn_group * plan.images_per_gpu
    assert in_group == plan.images_per_bn_group
    assert in_group == (at_once if plan.bn_size is None else plan.bn_size)


@given(POSITIVE, POSITIVE, st.integers(1, 600), st.none() | st.integers(1, 80))
def test_only_what_does_not_divide_is_refused(
    world_size, images, total, bn_size
):
    divides = total % (world_size * images) == 0 and (
        bn_size is None
        or any(
            ranks * images == bn_size and world_size % ranks == 0
            for ranks in range(1, world_size + 1)
        )
    )
    if divides:
        BatchPlan(world_size, images, total, bn_size)
    else:
        with pytest.raises(PlanError):
            BatchPlan(world_size, images, total, bn_size)


@pytest.mark.parametrize('value', [0, -1, 2.0, '4', True, None])
@pytest.mark.parametrize(
    'name', ['world_size', 'images_per_gpu', 'total_batch_size']
)
def test_a_number_that_is_none(name, value):
    numbers = dict(world_size=8, images_per_gpu=4, total_batch_size=256)
    with pytest.raises(ValueError, match=f'{name}={value!r} must be'):
        BatchPlan(**numbers | {name: value})


@pytest.mark.parametrize('value', [0, -1, 2.0, '4', True])
def test_a_bn_size_that_is_none(value):
    with pytest.raises(ValueError, match=f'bn_size={value!r} must be'):
        BatchPlan(8, 4, 256, value)


def test_linear_rule():
    # 0.02 x 256 / 16: 5.12 is rounded once, and dividing by 16 is exact.
    assert BatchPlan(8, 4).learning_rate(0.02, 16) == 0.32
    assert BatchPlan(1, 8, 8).learning_rate(0.02, 16) == 0.01


def test_the_recipe_needs_the_standard_library_alone(root):
    script = (
        'import sys; sys.path.insert(0, sys.argv[1]); import recipe; '
        'outside = set(sys.modules) - set(sys.stdlib_module_names); '
        'print(sorted(m for m in outside if "." not in m))'
    )
    # Isolated and without site: nothing installed is visible.
    result = subprocess.run(
        [sys.executable, '-I', '-S', '-c', script, root / 'mmdet_megdet'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "['__main__', 'recipe']"
