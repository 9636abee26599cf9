# Copyright (c) mmdet_megdet contributors. All rights reserved.
import plan
import pytest

TABLE = """\
GPUs            8                            16 (2 nodes x 8)
images per GPU  4                            8
images at once  32                           128
accumulation    8 micro-steps                2 micro-steps
total batch     256 images                   256 images
BN statistics   32 images                    32 images
BN groups       1 x 8 GPUs                   4 x 4 GPUs
epoch           458 updates, 18 images over  458 updates, 18 images over
"""


def test_side_by_side(capsys):
    assert plan.main(['8x4', '2x8x8']) == 0
    assert capsys.readouterr().out == TABLE


def test_what_does_not_run_is_told_beside_what_does(capsys):
    assert plan.main(['8x4', '6x4', '8x32']) == 1
    output, error = capsys.readouterr()
    assert error.startswith('error: 6x4 does not run: 6 GPU(s) x 4')
    assert error.count('error') == 1
    assert 'BN groups       1 x 8 GPUs' in output
    assert 'BN is local' in output


def test_the_recipe_is_a_matter_of_options(capsys):
    words = '4x4 --bn-size none --total-batch 64 --images 1000'
    assert plan.main(words.split()) == 0
    *_, statistics, _, epoch = capsys.readouterr().out.splitlines()
    assert statistics == 'BN statistics   16 images'
    assert epoch == 'epoch           15 updates, 40 images over'


def test_mistakes(capsys):
    for text, message in (('8', 'is neither GPUS'), ('8x0', 'not a positive')):
        with pytest.raises(SystemExit, match='2'):
            plan.main([text])
        assert message in capsys.readouterr().err
