# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Which kernels serve a tensor, and what the user is told."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from mmdet_megdet.errors import ConfigError
from mmdet_megdet.sync_bn import kernels
from mmdet_megdet.sync_bn.kernels import check, plain

GPU = torch.device('cuda', 0)
TYPES = torch.float16, torch.float32


def on_gpu(dtype=torch.float16):
    """What the choice asks of a tensor."""
    return SimpleNamespace(is_cuda=True, device=GPU, dtype=dtype)


@pytest.fixture
def fused(monkeypatch):
    """Stands in for the module, whose import decides how kernels run."""
    for name in ('_passed', '_faults'):
        monkeypatch.setattr(kernels, name, type(getattr(kernels, name))())
    monkeypatch.delenv('MEGDET_BN_KERNELS', raising=False)
    monkeypatch.delenv('TRITON_INTERPRET', raising=False)
    module = SimpleNamespace(__name__='fused')
    monkeypatch.setitem(sys.modules, f'{kernels.__name__}.fused', module)
    monkeypatch.setattr(kernels, 'fused', module, raising=False)
    return module


@pytest.fixture
def fault(monkeypatch):
    """The check, which finds what it is told to."""
    finder = mock.Mock(return_value=None)
    monkeypatch.setattr(kernels, 'find_fault', finder)
    return finder


def test_auto_takes_triton_on_gpus_after_one_check(fused, fault):
    for _ in range(2):
        assert kernels.choose(on_gpu(), None) is fused
    fault.assert_called_once_with(GPU, *TYPES)
    assert kernels.choose(torch.empty(1), None) is plain
    assert kernels.outcome(GPU).startswith('Triton kernels, checked')


def test_a_fault_is_told_once_and_plain_operations_go_on(fused, fault):
    fault.return_value = 'dx is off by 3 times its bound'
    with pytest.warns(UserWarning, match='on cuda:0: dx is off by 3') as told:
        chosen = [kernels.choose(on_gpu(dtype), None) for dtype in TYPES]
    assert chosen == [plain, plain]
    assert len(told) == 1
    assert kernels.outcome(GPU) == (
        'plain operations: dx is off by 3 times its bound'
    )


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
    kernels.load(torch.device('cpu'), {torch.float32})
    assert not fault.called
    kernels.load(GPU, {torch.float32})
    assert {call.args[1] for call in fault.call_args_list} == {
        torch.float16,
        torch.bfloat16,
        torch.float32,
    }
    fault.reset_mock()
    kernels.choose(on_gpu(), torch.ones(1))
    assert not fault.called


def test_no_triton_and_kernels_that_fail_are_faults(monkeypatch):
    name = f'{kernels.__name__}.fused'
    arguments = torch.device('cpu'), torch.float32, torch.float32
    with monkeypatch.context() as patch:
        patch.delattr(kernels, 'fused', raising=False)
        patch.setitem(sys.modules, name, None)
        assert 'triton cannot be imported' in check.find_fault(*arguments)

    broken = mock.MagicMock(PROGRAMS=1)
    broken.local_sums.side_effect = RuntimeError('ptxas\n died')
    monkeypatch.setitem(sys.modules, name, broken)
    monkeypatch.setattr(kernels, 'fused', broken, raising=False)
    fault = check.find_fault(*arguments)
    assert fault == 'RuntimeError with float32, (2, 3, 9104): ptxas died'


def test_a_wrong_number_is_a_fault(monkeypatch):
    """The plain operations pass their own check; off by a little they fail."""
    arguments = torch.device('cpu'), torch.float32, torch.float32
    stand_in = SimpleNamespace(**vars(plain), PROGRAMS=1)
    monkeypatch.setitem(sys.modules, f'{kernels.__name__}.fused', stand_in)
    monkeypatch.setattr(kernels, 'fused', stand_in, raising=False)
    assert check.find_fault(*arguments) is None

    def a_little_off(*args):
        y, saved = plain.normalise(*args)
        return y.mul_(1 + 2.0**-15), saved

    stand_in.normalise = a_little_off
    fault = check.find_fault(*arguments)
    assert fault.startswith('y is off by ')
    assert 'times its bound with float32, (2, 3, 9104)' in fault


def test_nothing_is_said_on_cpus(monkeypatch):
    monkeypatch.delenv('MEGDET_BN_KERNELS', raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert kernels.choose(torch.empty(1), None) is plain
    assert kernels.outcome(torch.device('cpu')) == (
        'plain operations: cpu is no GPU'
    )
