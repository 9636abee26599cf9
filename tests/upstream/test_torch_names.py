# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What the private names of torch are used for still holds.

Where nothing else shows it: most are in use in every training.
"""

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from mmdet_megdet.runtime.comm_hook import register_comm_hook
from mmdet_megdet.upstream.torch_names import (
    group_timeout,
    is_low_rank,
    small_nccl_options,
)

NINE = timedelta(seconds=9)


@pytest.fixture
def gloo(tmp_path):
    """A process group of one rank."""
    store = dist.FileStore(str(tmp_path / 'store'), 1)
    dist.init_process_group('gloo', rank=0, world_size=1, store=store)
    yield
    dist.destroy_process_group()


def test_gradients_of_low_rank(gloo):
    for comm_hook, low_rank in (('powerSGD', True), ('fp16_compress', False)):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        register_comm_hook(model, comm_hook)
        assert is_low_rank(model) is low_rank
        assert not is_low_rank(model.module)


def test_groups_that_tell_no_timeout():
    cpu = torch.device('cpu')
    for backend in ({}, dict(options=None), dict(options=SimpleNamespace())):
        group = SimpleNamespace(
            _get_backend=lambda _, own=backend: SimpleNamespace(**own)
        )
        assert group_timeout(group, cpu) is None
    assert group_timeout(object(), cpu) is None


class NCCLOptions:
    """Of a torch with NCCL, which one for CPUs does not have."""

    def __init__(self):
        self.config = SimpleNamespace(max_ctas=None)
        self._timeout = timedelta(seconds=600)


def test_nccl_gets_a_small_communicator(monkeypatch):
    if dist.is_nccl_available():
        assert small_nccl_options(2, NINE).config.max_ctas == 2
    nccl = SimpleNamespace(Options=NCCLOptions)
    monkeypatch.setattr(dist, 'ProcessGroupNCCL', nccl, raising=False)
    for timeout in (NINE, None):
        options = small_nccl_options(2, timeout)
        assert options.config.max_ctas == 2
        assert options._timeout == (timeout or timedelta(seconds=600))
    # Built for an NCCL without such settings.
    nccl.Options = SimpleNamespace
    assert small_nccl_options(2, NINE) is None
