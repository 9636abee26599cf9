# Copyright (c) mmdet_megdet contributors. All rights reserved.
import pytest
from mmengine.dataset import BaseDataset
from mmengine.runner import Runner

from mmdet_megdet.upstream.mmengine_names import is_cut_to_batches


class Three(BaseDataset):
    def load_data_list(self):
        return [dict()] * 3


@pytest.mark.parametrize('batches', [None, 1])
def test_is_cut_to_batches(batches):
    loader = Runner.build_dataloader(
        dict(
            batch_size=2,
            num_workers=0,
            dataset=dict(type=Three),
            sampler=dict(type='DefaultSampler', shuffle=True),
            num_batch_per_epoch=batches,
        )
    )
    assert is_cut_to_batches(loader.dataset) is (batches is not None)
