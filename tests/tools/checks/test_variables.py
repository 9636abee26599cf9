# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import sys

import pytest

from tests.tools.command import TOOLS

sys.path.insert(0, str(TOOLS))  # as for a script there

from checks import nccl_variables, variables
from checks.report import FAIL, PASS, WARN


def test_known_names_of_nccl():
    assert not nccl_variables.SYSTEM & nccl_variables.DEBUGGING
    known = nccl_variables.SYSTEM | nccl_variables.DEBUGGING
    assert not known & set(nccl_variables.REPLACED)
    assert 'NCCL_SOCKET_IFNAME' in known
    assert 'NCCL_SOCKET_TIMEOUT' not in known


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
            dict(NCCL_SOCKET_IFNAMES='lo'),
            WARN,
            'NCCL has no variable NCCL_SOCKET_IFNAMES',
            'Did you mean NCCL_SOCKET_IFNAME',
        ),
        (
            dict(NCCL_MAX_NCHANNELS='4'),
            WARN,
            'NCCL_MAX_NCHANNELS is outdated',
            'Set NCCL_MAX_CTAS',
        ),
        (
            dict(NCCL_P2P_DISABLE='1'),
            WARN,
            'NCCL_P2P_DISABLE=1 is for debugging',
            'unset NCCL_P2P_DISABLE',
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
def test_variables(settings, level, text, remedy):
    (finding,) = variables.check_variables(settings)
    assert finding.level == level
    assert text in finding.text
    assert remedy in finding.remedy


def test_variables_that_are_right():
    settings = dict(
        NCCL_DEBUG='INFO',
        NCCL_SOCKET_IFNAME='l',  # a prefix
        NCCL_VERSION='2.30',  # a label of container images
        TORCH_NCCL_ASYNC_ERROR_HANDLING='1',
        TORCH_DISTRIBUTED_DEBUG='OFF',  # named in the compiled library alone
        GLOO_SOCKET_IFNAME='lo',
        HOME='/',
    )
    (finding,) = variables.check_variables(settings)
    assert finding.level == PASS
    assert finding.text.startswith('5 of NCCL, torch and gloo set')


def test_files_of_nccl_count(tmp_path):
    file = tmp_path / 'nccl.conf'
    file.write_text('# NCCL_A=1\nNCCL_SOCKET_TIMEOUT=3\nNCCL_DEBUG=INFO\n')
    settings = variables.nccl_settings(
        dict(NCCL_DEBUG='WARN', NCCL_CONF_FILE=str(file))
    )
    assert settings['NCCL_SOCKET_TIMEOUT'] == '3'
    assert settings['NCCL_DEBUG'] == 'WARN'
    assert 'NCCL_A' not in settings
