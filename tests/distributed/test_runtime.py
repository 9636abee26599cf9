# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import os
import sys

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner
from torch import nn

from mmdet_megdet.errors import CheckpointError
from mmdet_megdet.runtime import MegDetDistributedDataParallel, adapt_config
from tests.distributed.ranks import run_ranks
from tests.tools.command import ROOT, TINY_CONFIG, run
from tools.train import check_same_start


def gradient_and_buffer(rank, world_size, options):
    module = nn.Linear(2, 1)
    module.register_buffer('seen', torch.zeros(()))
    # The Runner gives the device.
    model = MegDetDistributedDataParallel(module, [rank], **options)
    module.seen.fill_(rank + 1)
    model(torch.tensor([1.0, 10.0]) * (rank + 1)).backward()
    return module.weight.grad.tolist(), module.seen.item()


@pytest.mark.parametrize(
    ('options', 'expected'),
    [({}, [1, 2]), (dict(broadcast_buffers=True), [1, 1])],
)
def test_each_rank_keeps_its_buffers(options, expected):
    results = run_ranks(gradient_and_buffer, 2, options)
    assert [buffer for _, buffer in results] == expected
    # Rank r's gradient is (1, 10) * (r + 1): the mean of 1 and 2 is 1.5.
    assert [grad for grad, _ in results] == [[[1.5, 15.0]]] * 2


def train(rank, world_size, work_dir):
    os.environ['LOCAL_RANK'] = str(rank)
    cfg = Config.fromfile(TINY_CONFIG)
    cfg.merge_from_dict(
        {
            'launcher': 'pytorch',
            'work_dir': work_dir,
            'log_level': 'ERROR',
            'train_cfg.max_epochs': 1,
            'model.norm_cfg': None,
            'model.extra_head_on': 1,
            'find_unused_parameters': True,
        }
    )
    runner = Runner.from_cfg(adapt_config(cfg))
    assert type(runner.model) is MegDetDistributedDataParallel
    before = {k: v.clone() for k, v in runner.model.state_dict().items()}
    runner.train()
    return before, runner.model.state_dict()


def test_runner_trains_on_gloo(tmp_path):
    """Equal weights and, without synchronised BN, each rank's statistics.

    Also those of a head that rank 0 never uses.
    """
    (before, first), (_, second) = run_ranks(train, 2, str(tmp_path))
    for key in ('module.conv.weight', 'module.extra_head.weight'):
        assert not torch.equal(before[key], first[key])
    for key, value in first.items():
        local = key.endswith(('running_mean', 'running_var'))
        assert torch.equal(value, second[key]) is not local, key


def start(rank, world_size, checkpoints):
    resume = checkpoints[rank] is not None
    cfg = Config(dict(load_from=checkpoints[rank], resume=resume))
    try:
        check_same_start(cfg)
    except CheckpointError as error:
        return str(error)
    return 'same'


def test_ranks_that_see_different_work_folders():
    assert run_ranks(start, 2, ['a.pth', 'a.pth']) == ['same'] * 2
    for message in run_ranks(start, 2, ['a.pth', None]):
        assert 'is a.pth on rank 0 and none on rank 1' in message


# Rank 0 fails while its own collective is under way.
PENDING = """
import signal
import torch
import torch.distributed as dist
from mmdet_megdet.cli import run_tool
from mmdet_megdet.runtime import init_distributed

def main():
    init_distributed('pytorch', dict(dist_cfg=dict(timeout=3000)))
    if dist.get_rank() == 1:
        signal.pause()  # until torchrun ends it
    work = dist.all_reduce(torch.zeros(1), async_op=True)
    raise RuntimeError('while a collective is under way')

run_tool(main)
"""


def test_failure_with_a_collective_under_way_does_not_hang(tmp_path):
    script = tmp_path / 'pending.py'
    script.write_text(PENDING)
    torchrun = (sys.executable, '-m', 'torch.distributed.run')
    options = ('--standalone', '--nproc-per-node=2')
    result = run(*torchrun, *options, script, PYTHONPATH=str(ROOT))
    assert result.returncode == 1
    assert 'RuntimeError: while a collective is under way' in result.stdout
