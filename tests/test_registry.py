# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What ``_base_ = 'mmdet_megdet::...'`` leads to, built."""

import logging

import mmengine.registry
import pytest


@pytest.mark.parametrize(
    ('registry', 'cfg', 'library'),
    [
        ('MODELS', dict(type='MegDetSyncBN', num_features=2), 'mmdet_megdet'),
        ('MODELS', dict(type='CrossEntropyLoss'), 'mmdet'),
        ('TRANSFORMS', dict(type='LoadImageFromFile'), 'mmcv'),
        ('HOOKS', dict(type='IterTimerHook'), 'mmengine'),
    ],
)
def test_components_of_every_library_are_built(registry, cfg, library, caplog):
    root = getattr(mmengine.registry, registry)
    with caplog.at_level(logging.WARNING):
        built = root.build(dict(cfg, _scope_='mmdet_megdet'))
    assert type(built).__name__ == cfg['type']
    assert type(built).__module__.startswith(f'{library}.')
    assert not caplog.records
