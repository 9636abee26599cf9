# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Environment variables of NCCL, torch and gloo: known, and sensible?"""

from __future__ import annotations

import difflib
import importlib.util
import mmap
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from . import nccl_variables
from .report import Finding, failure, passed, some, warning

CHECK = 'environment variables'
_NCCL = nccl_variables.SYSTEM | nccl_variables.DEBUGGING
_OTHERS = ('TORCH_', 'TORCHELASTIC_', 'GLOO_')
# NCCL's guide counts it among those for debugging; our launchers set it.
_OURS = {'NCCL_LAUNCH_ORDER_IMPLICIT'}
# Labels that container images carry; nothing reads them.
_LABELS = {'NCCL_VERSION'}

# Set on purpose or left behind: works, at a price that one should know.
_COSTLY = {
    ('TORCH_DISTRIBUTED_DEBUG', 'DETAIL'): 'every collective is checked '
    'against the other ranks first',
    ('CUDA_LAUNCH_BLOCKING', '1'): 'the host waits for every CUDA kernel',
    ('TORCH_NCCL_BLOCKING_WAIT', '1'): 'the host waits for every collective',
    ('TORCH_NCCL_ASYNC_ERROR_HANDLING', '0'): 'a rank whose collective '
    'never ends waits for ever',
    ('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1'): 'checkpoints may run any code '
    'as they are loaded',
}


def check_variables(settings: Mapping[str, str]) -> Iterator[Finding]:
    """Unknown names, outdated ones, interfaces that are not there.

    Args:
        settings (Mapping[str, str]): As :func:`nccl_settings` gives them.
    """
    findings = [
        *_nccl_names(settings),
        *_torch_names(settings),
        *_costly(settings),
        *_interfaces(settings, [name for _, name in socket.if_nameindex()]),
    ]
    names = [
        name
        for name in settings
        if name.startswith(('NCCL_', *_OTHERS)) and name not in _LABELS
    ]
    if not findings:
        listed = f'{len(names)} of NCCL, torch and gloo set'
        yield passed(
            CHECK, listed + (f', all known: {some(names, 8)}' if names else '')
        )
    yield from findings


def nccl_settings(
    environment: Mapping[str, str], files: Iterable[Path] | None = None
) -> dict[str, str]:
    """The environment, and what NCCL's configuration files add to it.

    Args:
        environment (Mapping[str, str]): ``os.environ``, which goes first.
        files (Iterable[Path], optional): Defaults to None: those that NCCL
            reads.
    """
    if files is None:
        own = environment.get('NCCL_CONF_FILE')
        files = [
            Path(own) if own else Path.home() / '.nccl.conf',
            Path('/etc/nccl.conf'),
        ]
    settings = dict(environment)
    for path in files:
        if path.is_file():
            for line in path.read_text(errors='replace').splitlines():
                name, equals, value = line.partition('=')
                if equals and not name.lstrip().startswith('#'):
                    settings.setdefault(name.strip(), value.strip())
    return settings


def _nccl_names(settings: Mapping[str, str]) -> Iterator[Finding]:
    names = [name for name in sorted(settings) if name.startswith('NCCL_')]
    for name in names:
        if name in nccl_variables.REPLACED:
            yield warning(
                CHECK,
                f'{name} is outdated',
                f'Set {nccl_variables.REPLACED[name]} instead.',
            )
        elif name in nccl_variables.DEBUGGING - _OURS:
            yield warning(
                CHECK,
                f"{name}={settings[name]} is for debugging, by NCCL's guide "
                '"should generally not be set for production code"',
                f'unset {name}, unless this cluster needs it.',
            )
        elif name not in _NCCL | _LABELS and not _named_in(
            name, _nccl_libraries()
        ):
            yield warning(
                CHECK,
                f'NCCL has no variable {name}: the setting has no effect',
                _remedy(name, _NCCL)
                + (
                    ' How long a rank waits for the others is the '
                    "config's env_cfg.dist_cfg.timeout, in seconds."
                    if 'TIMEOUT' in name
                    else ''
                ),
            )


def _torch_names(settings: Mapping[str, str]) -> Iterator[Finding]:
    names = [name for name in sorted(settings) if name.startswith(_OTHERS)]
    folder = _package_folder('torch')
    if not names or folder is None:
        return
    libraries = sorted((folder / 'lib').glob('lib*torch*.so'))
    for name in names:
        known = _names_in_sources(folder)
        if name not in known and not _named_in(name, libraries):
            yield warning(
                CHECK,
                f'this torch knows no variable {name}: the setting has no '
                'effect, unless a program of yours reads it',
                _remedy(name, known),
            )


def _costly(settings: Mapping[str, str]) -> Iterator[Finding]:
    for (name, value), price in _COSTLY.items():
        if settings.get(name) == value:
            yield warning(
                CHECK, f'{name}={value}: {price}', f'unset {name} to train.'
            )


def _interfaces(
    settings: Mapping[str, str], present: list[str]
) -> Iterator[Finding]:
    """Network interfaces that are asked for and not there."""
    for name in ('NCCL_SOCKET_IFNAME', 'GLOO_SOCKET_IFNAME'):
        asked = settings.get(name, '')
        if not asked or asked.startswith('^'):
            continue
        exact = name.startswith('GLOO') or asked.startswith('=')
        for word in asked.lstrip('=').split(','):
            if any(
                found == word if exact else found.startswith(word)
                for found in present
            ):
                continue
            yield failure(
                CHECK,
                f'{name}={asked}: this machine has no interface {word}',
                f'Name one of {", ".join(present)}, or unset {name}.',
            )


def _remedy(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.7)
    if near:
        return f'Did you mean {" or ".join(near)}? Otherwise unset it.'
    return 'unset it.'


def _package_folder(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _nccl_libraries() -> list[Path]:
    torch = _package_folder('torch')
    if torch is None:
        return []
    return sorted(torch.parent.glob('nvidia/*/lib/libnccl.so*'))


@cache
def _names_in_sources(folder: Path) -> frozenset[str]:
    """Variables that torch's Python sources and headers name in quotes.

    The installed torch is the only list that is right for it.
    """
    pattern = re.compile(rf'[\'"]((?:{"|".join(_OTHERS)})[A-Z0-9_]+)[\'"]')
    names = set()
    for kind in ('*.py', '*.h', '*.hpp'):
        for path in folder.rglob(kind):
            names.update(pattern.findall(path.read_text(errors='replace')))
    return frozenset(names)


def _named_in(name: str, libraries: Iterable[Path]) -> bool:
    """Whether a compiled library holds this name as a C string."""
    text = name.encode() + b'\0'
    for path in libraries:
        with (
            path.open('rb') as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory,
        ):
            if memory.find(text) >= 0:
                return True
    return False
