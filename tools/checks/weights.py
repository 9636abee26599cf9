# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The weights that a run starts from: are they here?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .report import Finding, failure, passed, reason, warning

CHECK = 'weights'


def check_weights(cfg: Any) -> Iterator[Finding]:
    """Check ``init_cfg`` of the model's parts, and ``load_from``."""
    names = dict.fromkeys(_pretrained(cfg.get('model')))
    if cfg.get('load_from'):
        names[cfg.load_from] = None
    for name in names:
        yield check_weight(name)
    if not names:
        yield passed(CHECK, 'none: training starts from scratch')


def _pretrained(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get('type') == 'Pretrained' and node.get('checkpoint'):
            yield node['checkpoint']
        if isinstance(node.get('pretrained'), str):
            yield node['pretrained']
        node = list(node.values())
    if isinstance(node, list | tuple):
        for value in node:
            yield from _pretrained(value)


def check_weight(name: str) -> Finding:
    """Check one file or address, in any of MMEngine's spellings."""
    scheme, separator, rest = name.partition('://')
    if not separator:
        path = Path(name).expanduser()
        if not path.is_file():
            text = f'there is no file {path}'
            return failure(CHECK, text, 'Mend the path in the config.')
        if path.stat().st_size == 0:
            return failure(CHECK, f'{path} is empty', 'Copy it again.')
        return passed(CHECK, f'{path}: {path.stat().st_size} bytes')
    if scheme in ('http', 'https'):
        return _address(name, name)
    if scheme not in _TABLES:
        return warning(
            CHECK,
            f'{name}: not checked',
            f'See for yourself whether every node reaches {scheme}://.',
        )
    try:
        from mmengine.runner import checkpoint

        models = getattr(checkpoint, _TABLES[scheme])()
    except Exception as error:
        text = f'{name}: {reason(error)}'
        return failure(CHECK, text, 'Mend what this says.')
    if rest not in models:
        return failure(
            CHECK,
            f'{name}: there is no {rest!r} among its models',
            'Mend the name in init_cfg.',
        )
    return _address(name, models[rest])


# MMEngine's functions that give addresses by names.
_TABLES = {
    'torchvision': 'get_torchvision_models',
    'modelzoo': 'get_torchvision_models',
    'open-mmlab': 'get_external_models',
    'openmmlab': 'get_external_models',
    'mmcls': 'get_mmcls_models',
}


def _address(name: str, address: str) -> Finding:
    """Look for a file in torch's download folder, not on the network."""
    import torch

    folder = Path(torch.hub.get_dir(), 'checkpoints')
    file = folder / Path(address).name
    if file.is_file():
        return passed(CHECK, f'{name}: downloaded before ({file})')
    return warning(
        CHECK,
        f'{name} is not on this machine: training downloads {address}, which '
        'has not been asked',
        'Where nodes have no network, download it elsewhere and put it into '
        f'{folder} on every node (or wherever TORCH_HOME/hub/checkpoints is).',
    )
