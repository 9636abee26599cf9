# Copyright (c) mmdet_megdet contributors. All rights reserved.
import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.optim import LinearLR, OptimWrapper
from mmengine.runner import Runner

from mmdet_megdet.schedulers import PreciseLinearWarmup
from mmdet_megdet.upstream.mmengine_names import (
    count_skipped_update,
    is_cut_to_batches,
)


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


def test_count_skipped_update(recwarn):
    """Schedulers go on as after a step, and so does the accumulation."""
    weight = torch.nn.Parameter(torch.zeros(1))
    wrapper = OptimWrapper(torch.optim.SGD([weight], 0.4), 2)
    ours = PreciseLinearWarmup(wrapper, start_factor=0.5, end=4)
    stock = LinearLR(wrapper, by_epoch=False, end=4)
    wrapper.initialize_count_status(torch.nn.Module(), 0, 8)
    count_skipped_update(wrapper, 2)
    assert wrapper.should_update()
    ours.step()
    stock.step()
    assert ours._global_step == stock._global_step == 1
    assert not [w for w in recwarn if 'optimizer.step' in str(w.message)]
