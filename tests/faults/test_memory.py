# Copyright (c) mmdet_megdet contributors. All rights reserved.
import re

import pytest
import torch

from mmdet_megdet.faults.memory import is_out_of_memory
from tests.data.image_run import images_config, train_on_images
from tests.data.image_task import write_images


@pytest.mark.parametrize(('settings', 'text'), [
    (dict(model__bn_size=2), '--images-per-gpu 1 --bn-size none\n'),
    # Of one image already nothing can be left out.
    (dict(train_dataloader__batch_size=1),
     'with 1 image(s) per GPU on rank 0. Less memory for the'),
])  # fmt: skip
def test_what_would_fit(tmp_path, settings, text):
    write_images(tmp_path / 'data')
    folders = tmp_path / 'data', tmp_path / 'run'
    cfg = images_config(*folders, model__fault='memory', **settings)
    with pytest.raises(torch.OutOfMemoryError, match=re.escape(text)):
        train_on_images(cfg)


def test_what_counts():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**62, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    cudnn = RuntimeError('cuDNN error: CUDNN_STATUS_ALLOC_FAILED')
    assert is_out_of_memory(cudnn)
    assert not is_out_of_memory(RuntimeError('shape mismatch'))
    assert not is_out_of_memory(ValueError('out of memory'))
