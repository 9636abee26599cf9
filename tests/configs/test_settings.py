# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Every config has the settings that its name and the README promise."""

from __future__ import annotations

import re
import sys

import pytest
from mmengine.config import Config

import mmdet_megdet  # noqa: F401  lets the README's bases be found
from tests.configs.expected import CONFIGS, TABLE, load
from tests.tools.command import TOOLS

sys.path.append(str(TOOLS / 'analysis'))  # as for scripts there

import plot_schedule


def bn_sizes(node):
    """Every bn_size of a model's norm layers."""
    if isinstance(node, list | tuple):
        return {size for item in node for size in bn_sizes(item)}
    if not isinstance(node, dict):
        return set()
    own = {node.get('bn_size')} if node.get('type') == 'MegDetSyncBN' else ()
    return {size for item in node.values() for size in bn_sizes(item)} | {*own}


@pytest.mark.parametrize('name', TABLE)
def test_settings(name):
    cfg, expected = load(name), TABLE[name]
    assert cfg.model.type == expected.detector
    assert bn_sizes(cfg.model) == {expected.bn_size}
    assert cfg.train_dataloader.batch_size == expected.images
    total = cfg.default_hooks.total_batch
    assert total == dict(
        type='TotalBatchHook', total_batch_size=expected.total
    )
    assert cfg.train_cfg.type == 'UpdateTrainLoop'
    assert cfg.train_dataloader.batch_sampler.type == 'UpdateBatchSampler'
    assert cfg.optim_wrapper.type == expected.wrapper
    assert cfg.optim_wrapper.optimizer.type == expected.optimizer
    assert cfg.optim_wrapper.clip_grad == dict(
        max_norm=expected.clip, norm_type=2
    )
    assert cfg.default_hooks.sync_bn_group == dict(type='SyncBNGroupHook')
    assert 'accumulative_counts' not in cfg.optim_wrapper
    # A child config that sets custom_hooks would lose what stood there.
    assert 'custom_hooks' not in cfg

    gpus = 1 if expected.total == 8 else 8
    images = expected.updates * expected.total
    rates = plot_schedule.rehearse(cfg, gpus, images).rates
    assert len(rates) == expected.updates * cfg.train_cfg.max_epochs
    for update, factor in expected.factors.items():
        assert rates[update] == pytest.approx(expected.lr * factor, rel=1e-12)


def test_readme():
    assert {path.stem for path in CONFIGS.glob('*.py')} == TABLE.keys()
    readme = (CONFIGS / 'README.md').read_text()
    rows = [
        [cell.strip() for cell in line.split('|')[1:-1]]
        for line in readme.splitlines()
        if line.startswith('| [')
    ]
    assert [row[0] for row in rows] == [
        f'[{name}]({name}.py)' for name in TABLE
    ]
    for (name, expected), row in zip(TABLE.items(), rows, strict=True):
        _, _, batch, bn_size, schedule, *_ = row
        assert int(batch.split()[0]) == expected.total
        assert bn_size == str(expected.bn_size or 'all')
        rate, warmup = schedule.split(',', 1)
        assert float(rate.split()[0]) == expected.lr
        lengths = [int(n) for n in re.findall(r'(\d+) (?:lin|cos|at)', warmup)]
        assert sum(lengths) == load(name).param_scheduler[0].end

    (text,) = re.findall(r'```python\n(.*?)```', readme, re.DOTALL)
    example = Config.fromstring(text, '.py')
    expected = load('faster-rcnn_r50_fpn_256bs')
    assert without_scopes(example.to_dict()) == without_scopes(
        expected.to_dict()
    )


def without_scopes(node):
    """A config without MMEngine's notes of where a base came from."""
    if isinstance(node, list | tuple):
        return [without_scopes(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {k: without_scopes(v) for k, v in node.items() if k != '_scope_'}
