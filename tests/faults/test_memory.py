# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import pytest
import torch

from mmdet_megdet.faults.memory import is_out_of_memory
from tests.data.image_run import images_config, train_on_images
from tests.data.image_task import write_images


@pytest.fixture
def message(tmp_path):
    """Of a training that runs out of memory in its first iteration."""
    write_images(tmp_path / 'data')

    def train(**settings):
        cfg = images_config(
            tmp_path / 'data',
            tmp_path / 'run',
            model__fault='memory',
            **settings,
        )
        with pytest.raises(torch.OutOfMemoryError) as caught:
            train_on_images(cfg)
        return str(caught.value)

    return train


def test_bn_size_that_cannot_be_kept(message):
    text = message(model__bn_size=2)
    assert 'CONFIG --images-per-gpu 1 --bn-size none\n' in text


def test_one_image_already(message):
    text = message(train_dataloader__batch_size=1)
    assert 'with 1 image(s) per GPU on rank 0. Less memory for the' in text


def test_what_counts():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**62, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(
        RuntimeError('cuDNN error: CUDNN_STATUS_ALLOC_FAILED')
    )
    assert not is_out_of_memory(RuntimeError('shape mismatch'))
    assert not is_out_of_memory(ValueError('out of memory'))
