# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Which kernels serve a tensor, and what the user is told."""

import re
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.sync_bn import kernels
from mmdet_megdet.sync_bn.kernels import check, plain

CPU, GPU = torch.device('cpu'), torch.device('cuda', 0)
TYPES = torch.float16, torch.float32


def on_gpu(dtype=torch.float16):
    """What the choice asks of a tensor."""
    return SimpleNamespace(is_cuda=True, device=GPU, dtype=dtype)


@pytest.fixture
def fused(monkeypatch):
    """Stands in for the module, whose import decides how kernels run."""
    monkeypatch.setattr(kernels, '_passed', set())
    monkeypatch.setattr(kernels, '_faults', {})
    monkeypatch.delenv('MEGDET_BN_KERNELS', raising=False)
    monkeypatch.delenv('TRITON_INTERPRET', raising=False)
    module = SimpleNamespace(**vars(plain), PROGRAMS=1)
    monkeypatch.setitem(sys.modules, f'{kernels.__name__}.fused', module)
    monkeypatch.setattr(kernels, 'fused', module, raising=False)
    return module


@pytest.fixture
def fault(monkeypatch):
    """The check, which finds what it is told to."""
    finder = mock.Mock(return_value=None)
    monkeypatch.setattr(kernels, 'find_fault', finder)
    return finder


@pytest.mark.filterwarnings('error')
def test_auto_takes_triton_on_gpus_after_one_check(fused, fault):
    for _ in range(2):
        assert kernels.choose(on_gpu(), None) is fused
    fault.assert_called_once_with(GPU, *TYPES)
    assert kernels.outcome(GPU).startswith('Triton kernels, checked')
    assert kernels.choose(torch.empty(1), None) is plain
    assert kernels.outcome(CPU) == 'plain operations: cpu is no GPU'


def test_a_fault_is_told_once_and_plain_operations_go_on(fused, fault):
    fault.return_value = 'dx is off by 3 times its bound'
    with pytest.warns(UserWarning, match='on cuda:0: dx is off by 3') as told:
        chosen = [kernels.choose(on_gpu(dtype), None) for dtype in TYPES]
    assert chosen == [plain, plain]
    assert len(told) == 1
    assert kernels.outcome(GPU) == f'plain operations: {fault.return_value}'


def test_whoever_asks_for_triton_gets_it_or_an_error(
    fused, fault, monkeypatch
):
    monkeypatch.setenv('MEGDET_BN_KERNELS', 'triton')
    assert kernels.choose(on_gpu(), None) is fused
    with pytest.raises(ConfigError, match='on cpu: Triton needs a GPU'):
        kernels.choose(torch.empty(1), None)
    fault.return_value = 'it does not compile'
    with pytest.raises(ConfigError, match='did not pass on cuda:0: it does'):
        kernels.choose(on_gpu(torch.float32), None)
    monkeypatch.setenv('MEGDET_BN_KERNELS', 'plain')
    assert kernels.choose(on_gpu(), None) is plain
    monkeypatch.setenv('MEGDET_BN_KERNELS', 'fast')
    with pytest.raises(ConfigError, match="'fast' is none of auto, triton"):
        kernels.choose(on_gpu(), None)


def test_making_groups_checks_all_that_training_may_need(fused, fault):
    kernels.load(CPU, {torch.float32})
    assert not fault.called
    kernels.load(GPU, {torch.float32})
    checked = {call.args[1] for call in fault.call_args_list}
    assert checked == {torch.bfloat16, *TYPES}
    fault.reset_mock()
    kernels.choose(on_gpu(), torch.ones(1))
    assert not fault.called


def test_the_check_finds_what_is_wrong(fused, monkeypatch):
    def found():
        return check.find_fault(CPU, torch.float32, torch.float32)

    def a_little_off(*args):
        y, saved = plain.normalise(*args)
        return y.mul_(1 + 2.0**-15), saved

    assert found() is None  # plain operations pass their own check
    fused.normalise = a_little_off
    off = r'y is off by .* times its bound with float32, \(2, 3, 9104\)'
    assert re.match(off, found())
    fused.local_sums = mock.Mock(side_effect=RuntimeError('ptxas\n died'))
    assert found() == 'RuntimeError with float32, (2, 3, 9104): ptxas died'
    monkeypatch.delattr(kernels, 'fused')
    monkeypatch.setitem(sys.modules, f'{kernels.__name__}.fused', None)
    assert 'triton cannot be imported' in found()
