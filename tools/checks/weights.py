# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The weights that a run starts from: can they be had?"""

from __future__ import annotations

import importlib.util
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .report import Finding, failure, passed, reason, warning

_TIMEOUT = 5.0  # seconds
CHECK = 'weights'


def check_weights(cfg: Any) -> Iterator[Finding]:
    """``init_cfg`` of the model's parts, and ``load_from``."""
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
        for value in node.values():
            yield from _pretrained(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _pretrained(value)


def check_weight(name: str) -> Finding:
    """One file or address, in any of MMEngine's spellings."""
    scheme, separator, rest = name.partition('://')
    if not separator:
        return _file(Path(name).expanduser())
    if scheme in ('http', 'https'):
        return _address(name, name)
    if scheme not in _TABLES:
        return warning(
            CHECK,
            f'{name}: not checked',
            f'See for yourself whether every node reaches {scheme}://.',
        )
    if scheme in ('torchvision', 'modelzoo'):
        found = importlib.util.find_spec('torchvision')
        if found is None:
            return failure(
                CHECK,
                f'{name} needs torchvision, which is not installed',
                'Install the torchvision that belongs to this torch, or '
                'download the file elsewhere and give its path in init_cfg.',
            )
    try:
        table = _TABLES[scheme]()
        address = table[rest]
    except KeyError:
        return failure(
            CHECK,
            f'{name}: there is no {rest!r} among its models',
            'Mend the name in init_cfg.',
        )
    except Exception as error:
        return failure(
            CHECK, f'{name}: {reason(error)}', 'Mend what this says.'
        )
    return _address(name, address)


def _torchvision_models() -> dict[str, str]:
    from mmengine.runner.checkpoint import get_torchvision_models

    return get_torchvision_models()


def _openmmlab_models() -> dict[str, str]:
    from mmengine.runner.checkpoint import get_external_models

    return get_external_models()


def _mmcls_models() -> dict[str, str]:
    from mmengine.runner.checkpoint import get_mmcls_models

    return get_mmcls_models()


_TABLES: dict[str, Callable[[], dict[str, str]]] = {
    'torchvision': _torchvision_models,
    'modelzoo': _torchvision_models,
    'open-mmlab': _openmmlab_models,
    'openmmlab': _openmmlab_models,
    'mmcls': _mmcls_models,
}


def _file(path: Path) -> Finding:
    if not path.is_file():
        return failure(
            CHECK, f'there is no file {path}', 'Mend the path in the config.'
        )
    if path.stat().st_size == 0:
        return failure(CHECK, f'{path} is empty', 'Copy or download it again.')
    return passed(CHECK, f'{path}: {path.stat().st_size} bytes')


def _address(name: str, address: str) -> Finding:
    """A file in torch's download folder, or to be downloaded."""
    import torch

    folder = Path(torch.hub.get_dir(), 'checkpoints')
    file = folder / Path(address).name
    if file.is_file():
        return passed(CHECK, f'{name}: downloaded before ({file})')
    remedy = (
        f'Download {address} where there is a network, and put it into '
        f'{folder} on every node (or wherever TORCH_HOME/hub/checkpoints is).'
    )
    if not address.startswith(('http://', 'https://')):
        return warning(CHECK, f'{name}: {address} is not checked', remedy)
    request = urllib.request.Request(address, method='HEAD')
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            size = answer.headers.get('Content-Length', 'unknown')
    except (urllib.error.URLError, OSError) as error:
        return failure(
            CHECK, f'{name}: {address} cannot be reached: {error}', remedy
        )
    return passed(CHECK, f'{name}: {address} can be reached ({size} bytes)')
