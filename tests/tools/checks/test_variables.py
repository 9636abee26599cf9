# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import sys

import pytest

from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS))  # as for a script there

from checks import variables
from checks.report import FAIL, PASS, WARN


@pytest.fixture
def nccl(tmp_path):
    """A compiled library in which NCCL is."""
    path = tmp_path / 'libnccl.so.2'
    path.write_bytes(b'\x7fELF\0NCCL_SOCKET_IFNAME\0..NCCL_DEBUG\0NCCL_X2\0')
    return path


@pytest.mark.parametrize(
    ('settings', 'level', 'text', 'remedy'),
    [
        (
            dict(NCCL_SOCKET_TIMEOUT='9'),
            WARN,
            'NCCL has no variable NCCL_SOCKET_TIMEOUT',
            'env_cfg.dist_cfg.timeout',
        ),
        (
            dict(NCCL_X='9'),  # not the whole of a name
            WARN,
            'NCCL has no variable NCCL_X:',
            'unset NCCL_X',
        ),
        (
            dict(TORCH_DISTRIBUTED_DEBUG='DETAIL'),
            WARN,
            'TORCH_DISTRIBUTED_DEBUG=DETAIL: every collective is checked',
            'unset TORCH_DISTRIBUTED_DEBUG',
        ),
        (
            dict(NCCL_SOCKET_IFNAME='=nowhere0'),
            FAIL,
            'no interface nowhere0',
            'Name one of ',
        ),
        (
            dict(GLOO_SOCKET_IFNAME='l'),  # gloo takes no prefixes
            FAIL,
            'no interface l',
            'lo',
        ),
    ],
)
def test_variables(nccl, settings, level, text, remedy):
    (finding,) = variables.check_variables(settings, [nccl])
    assert finding.level == level
    assert text in finding.text
    assert remedy in finding.remedy


def test_variables_that_are_right(nccl):
    settings = dict(
        NCCL_DEBUG='INFO',
        NCCL_SOCKET_IFNAME='l',  # a prefix
        NCCL_VERSION='2.30',  # a label of container images
        TORCH_NCCL_ASYNC_ERROR_HANDLING='1',
        GLOO_SOCKET_IFNAME='lo',
        HOME='/',
    )
    (finding,) = variables.check_variables(settings, [nccl])
    assert finding.level == PASS
    assert finding.text.startswith('4 of NCCL, torch and gloo set')


def test_nothing_is_said_of_names_without_nccl(tmp_path):
    other = tmp_path / 'libtorch.so'
    other.write_bytes(b'\x7fELF')
    (finding,) = variables.check_variables(dict(NCCL_X='1'), [other])
    assert finding.level == PASS


def test_torchs_own_libraries_are_found():
    import torch  # noqa: F401

    names = {path.name for path in variables._loaded_libraries()}
    assert 'libtorch_cpu.so' in names
