# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Ranks are started with other versions, or another config."""

from __future__ import annotations

import hashlib
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..errors import ConfigError
from ..ranks import differences

_PACKAGES = ('torch', 'torchvision', 'mmcv', 'mmengine', 'mmdet', 'numpy')
# Where things lie may differ from machine to machine, and where a run
# continues is compared by the tool that looks for it.
_PLACES = re.compile(
    'ann_file|data_prefix|data_root|launcher|load_from|out_dir|resume|save_dir'
    '|work_dir'
)


@HOOKS.register_module()
class SameRunHook(Hook):
    """Refuse ranks that were started with other versions or configs.

    All ranks compare versions, this package's source and the config's settings
    (but for those that say where something lies), and all raise a ConfigError
    that names what differs and on which ranks. ``tools/train.py`` and
    ``tools/test.py`` compare ahead of the model too.
    """

    # Ahead of what else ranks do together.
    priority = 'HIGHEST'

    def before_run(self, runner: Runner) -> None:
        """Compare versions and configs of all ranks; a collective."""
        check_same_run(runner.cfg)


def check_same_run(cfg: Config) -> None:
    """Refuse ranks as :class:`SameRunHook` does; a collective."""
    facts = versions() | settings(cfg.to_dict())
    digest = hashlib.sha256(repr(sorted(facts.items())).encode()).hexdigest()
    if len(set(all_gather_object(digest))) == 1:
        return
    raise ConfigError(
        f'the ranks do not run the same: '
        f'{differences(all_gather_object(facts))}. '
        'Start all of them with the same installation, config file, options '
        'and environment variables. (tools/dist_doctor.sh compares more.)'
    )


def versions() -> dict[str, str]:
    """Return the versions of what takes part in the arithmetic, by name."""
    found = {'Python': platform.python_version()}
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name), '__version__', None)
        if version is None:
            with suppress(metadata.PackageNotFoundError):
                version = metadata.version(name)
        found[name] = str(version)
    found['CUDA'] = str(torch.version.cuda)
    if torch.cuda.is_available():
        found['NCCL'] = '.'.join(map(str, torch.cuda.nccl.version()))
    found['mmdet_megdet (digest of its files)'] = _source_digest()
    return found


@cache
def _source_digest() -> str:
    folder = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob('*.py')):
        digest.update(f'{path.relative_to(folder)}\0'.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def settings(node: Any, prefix: str = '') -> dict[str, str]:
    """Return a config's values as texts, without places.

    By names such as ``model.backbone.depth``; ``prefix`` is a part's name.
    """
    parts: Iterable[tuple[Any, Any]]
    if isinstance(node, Mapping) and node:
        parts = node.items()
    elif isinstance(node, list | tuple) and node:
        parts = enumerate(node)
    else:
        # Objects are written with their address, which is not theirs alone.
        return {prefix: re.sub(r' at 0x[0-9a-f]+', '', repr(node))}
    found: dict[str, str] = {}
    for key, value in parts:
        if not _PLACES.fullmatch(str(key)):
            name = f'{prefix}.{key}' if prefix else str(key)
            found |= settings(value, name)
    return found
