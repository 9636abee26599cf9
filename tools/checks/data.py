# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A config's data sets: the annotation files, the folders, the images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmdet_megdet.annotations import Judgement, Verdict
from mmdet_megdet.faults.data import Mode, is_refused, mode_of

from .images import check_image_files
from .report import Finding, failure, passed, warning

_FOLDER = (
    "Set the data set's place: the environment variable that the config "
    'names ({{$NAME:default}} in it), data_root or data_prefix.'
)


def check_annotations(cfg: Any, judgement: Judgement) -> Iterator[Finding]:
    """What the annotation files of a config say.

    Args:
        cfg (Config): The config.
        judgement (Judgement): As :func:`judge` gives it.
    """
    mode = mode_of(cfg)
    for verdict in judgement.verdicts:
        yield _finding(verdict, mode)


def _finding(verdict: Verdict, mode: Mode) -> Finding:
    """A verdict as a line: FAIL if training does not start with it."""
    check = f'{verdict.check} ({", ".join(verdict.roles)})'
    if verdict.level == 'sound':
        return passed(check, verdict.text)
    if not is_refused(verdict, mode):
        return warning(check, verdict.text, verdict.remedy)
    if verdict.roles == ('test',):
        text = f'{verdict.text} tools/test.py refuses it.'
        return warning(check, text, verdict.remedy)
    return failure(check, verdict.text, verdict.remedy)


def check_images(
    judgement: Judgement, most: int | None, decode: bool
) -> Iterator[Finding]:
    """The images of all data sets, each file once.

    Args:
        judgement (Judgement): What the annotation files say.
        most (int, optional): How many images of each data set to read,
            spread evenly. None: all.
        decode (bool): Whether to decode them wholly instead of reading
            their headers.
    """
    found: dict[tuple, list] = {}
    for one in judgement.data_sets:
        key = one.use.path, one.use.folder, one.use.reader, len(one.ids)
        found.setdefault(key, []).append(one)
    for same in found.values():
        one, roles = same[0], [j.use.role for j in same]
        name = ', '.join(dict.fromkeys(roles))
        if Path(one.use.folder).is_dir() or '://' in one.use.folder:
            findings = check_image_files(name, one, most, decode)
        else:
            findings = [
                failure(
                    f'images ({name})',
                    f'there is no folder {one.use.folder}',
                    _FOLDER,
                )
            ]
        for finding in findings:
            if roles == ['test'] and finding.level == 'FAIL':
                finding = finding._replace(level='WARN')
            yield finding


def classes(judgement: Judgement) -> tuple[str, ...]:
    """The classes of the training data set; none where it is not known."""
    for one in judgement.data_sets:
        if one.use.role == 'train':
            said = one.use.classes
            return (said,) if isinstance(said, str) else said
    return ()
