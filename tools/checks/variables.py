# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Environment variables of NCCL, torch and gloo: read, and sensible?"""

from __future__ import annotations

import mmap
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .report import Finding, failure, passed, warning

CHECK = 'environment variables'
_PREFIXES = ('NCCL_', 'TORCH_', 'TORCHELASTIC_', 'GLOO_')
# A label that container images carry; nothing reads it.
_LABEL = 'NCCL_VERSION'

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


def check_variables(
    settings: Mapping[str, str], libraries: Sequence[Path] | None = None
) -> Iterator[Finding]:
    """Find names that NCCL does not read, values at a price, absent networks.

    Args:
        settings (Mapping[str, str]): The environment.
        libraries (Sequence[Path], optional): Where NCCL is compiled in.
            Defaults to None: libraries that this process has loaded.
    """
    if libraries is None:
        libraries = _loaded_libraries()
    findings = [
        *_unknown_to_nccl(settings, libraries),
        *_costly(settings),
        *_interfaces(settings, [name for _, name in socket.if_nameindex()]),
    ]
    yield from findings
    if not findings:
        names = [n for n in settings if n.startswith(_PREFIXES)]
        number = len(set(names) - {_LABEL})
        yield passed(CHECK, f'{number} of NCCL, torch and gloo set')


def _unknown_to_nccl(
    settings: Mapping[str, str], libraries: Sequence[Path]
) -> Iterator[Finding]:
    """Look names up in the library itself: the only list that is right."""
    if not _held('NCCL_SOCKET_IFNAME', libraries):
        return  # no NCCL here
    for name in sorted(settings):
        if not name.startswith('NCCL_') or name == _LABEL:
            continue
        if not _held(name, libraries):
            yield warning(
                CHECK,
                f'NCCL has no variable {name}: the setting has no effect, '
                'unless a plugin reads it',
                f'unset {name}. How long a rank waits for the others is the '
                "config's env_cfg.dist_cfg.timeout, in seconds."
                if 'TIMEOUT' in name
                else f"unset {name}, or mend it by NCCL's user guide.",
            )


def _loaded_libraries() -> list[Path]:
    """Return NCCL's and torch's libraries, into one of which NCCL is built."""
    maps = Path('/proc/self/maps')
    text = maps.read_text() if maps.is_file() else ''
    found = re.findall(r'(/.*/lib(?:nccl|torch)[^/]*)$', text, re.M)
    return [Path(name) for name in sorted(set(found)) if Path(name).is_file()]


def _held(name: str, libraries: Sequence[Path]) -> bool:
    """Return whether a compiled library holds this name as a C string."""
    for path in libraries:
        with (
            path.open('rb') as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory,
        ):
            if memory.find(name.encode() + b'\0') >= 0:
                return True
    return False


def _costly(settings: Mapping[str, str]) -> Iterator[Finding]:
    for (name, value), price in _COSTLY.items():
        if settings.get(name) == value:
            yield warning(
                CHECK, f'{name}={value}: {price}', f'unset {name} to train.'
            )


def _interfaces(
    settings: Mapping[str, str], present: list[str]
) -> Iterator[Finding]:
    """Find network interfaces that are asked for and not there."""
    for name in ('NCCL_SOCKET_IFNAME', 'GLOO_SOCKET_IFNAME'):
        asked = settings.get(name, '')
        if not asked or asked.startswith('^'):
            continue
        # NCCL takes prefixes.
        exact = name.startswith('GLOO') or asked.startswith('=')
        for word in asked.lstrip('=').split(','):
            if word in present or (
                not exact and any(found.startswith(word) for found in present)
            ):
                continue
            yield failure(
                CHECK,
                f'{name}={asked}: this machine has no interface {word}',
                f'Name one of {", ".join(present)}, or unset {name}.',
            )
