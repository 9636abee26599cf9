# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""All annotation files of a config, each read once, and held together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from ..text import some
from . import checks
from .datasets import Evaluation, Use, configured
from .reading import read_annotations
from .table import Table
from .verdict import Level, Verdict


class Judged(NamedTuple):
    """A data set, as its file says.

    Attributes:
        use (Use): The data set.
        ids (list): Ids of the images that it keeps.
        file_names (list[str]): Of these images.
        sizes (ndarray): Width and height of these images, (n, 2).
        objects (ndarray): Place among these images, and label, of each
            object that is used, (k, 2).
        counted (bool): Whether it is known which images are kept.
    """

    use: Use
    ids: list[Hashable]
    file_names: list[str]
    sizes: np.ndarray
    objects: np.ndarray
    counted: bool


class Judgement(NamedTuple):
    """Everything that a config's annotation files say.

    Attributes:
        verdicts (list[Verdict]): File by file.
        data_sets (list[Judged]): Those whose files could be read.
    """

    verdicts: list[Verdict]
    data_sets: list[Judged]


class _Labels(NamedTuple):
    path: str
    role: str
    names: list[str]


def judge(
    cfg: Any, roles: Sequence[str] = ('train', 'val', 'test')
) -> Judgement:
    """Judge the annotation files that a config names.

    Args:
        cfg (Config or dict): The config.
        roles (Sequence[str]): For which of 'train', 'val' and 'test'.
    """
    uses, evaluations, said = configured(cfg, roles)
    judged: list[Judged] = []
    evaluated: list[tuple[Evaluation, Table]] = []
    labels: list[_Labels] = []
    readers: list[Use | Evaluation] = [*uses, *evaluations]
    for path in dict.fromkeys(x.path for x in readers):
        here = [use for use in uses if use.path == path]
        by = [e for e in evaluations if e.path == path]
        users: list[Use | Evaluation] = [*here, *by]
        of_all = tuple(dict.fromkeys(x.role for x in users))
        table = read_annotations(path, any(x.with_masks for x in users))
        if not isinstance(table, Table):
            said += _for(of_all, table)
            continue
        said += _for(of_all, checks.check_ids(table))
        for use in here:
            empty = _level_of_nothing(use, uses, evaluations)
            found, one = _judge_use(table, use, empty)
            said += _for((use.role,), found)
            judged.append(one)
            names = [n for _, n in checks.labels_of(table, use.classes)]
            labels.append(_Labels(path, use.role, names))
        for e in by:
            # The classes are those of the data set that is evaluated.
            first = next((use for use in uses if use.role == e.role), None)
            classes = () if first is None else first.classes
            pairs = checks.labels_of(table, classes, e.sort_categories)
            if not e.format_only:
                ids = {key for key, _ in pairs}
                said += _for((e.role,), checks.check_evaluation(table, e, ids))
            evaluated.append((e, table))
            labels.append(_Labels(path, e.role, [n for _, n in pairs]))
    if judged:
        said += _compare_labels(labels)
    for e, table in evaluated:
        own = [one for one in judged if one.use.role == e.role]
        if own and not e.format_only and all(one.counted for one in own):
            said += _for((e.role,), _compare_images(table, own))
    return Judgement(_merged(said), judged)


def _for(roles: tuple[str, ...], found: Iterable[Verdict]) -> list[Verdict]:
    return [verdict._replace(roles=roles) for verdict in found]


def _level_of_nothing(
    use: Use, uses: list[Use], evaluations: list[Evaluation]
) -> Level | None:
    """Return how bad it is if a data set holds no object."""
    if use.role == 'train':
        # Images without labels may be meant beside others.
        alone = [other.role for other in uses].count('train') == 1
        return 'broken' if alone else 'misleading'
    by = [e for e in evaluations if e.role == use.role]
    predicts_only = by and all(e.format_only for e in by)
    return None if predicts_only else 'misleading'


def _judge_use(
    table: Table, use: Use, empty: Level | None
) -> tuple[list[Verdict], Judged]:
    found = checks.instances_of(table, use.classes)
    said = list(checks.check_classes(table, use))
    try:
        images = checks.used_images(table, found, use)
        counted = use.filters
    except (IndexError, TypeError, ValueError):
        said.append(checks.wrong_indices(table, use))
        images, counted = np.arange(len(table.image_ids)), False
    said += checks.check_categories(table, found, use)
    said += checks.check_boxes(table, found)
    if use.with_masks:
        said += checks.check_masks(table, found)
    known = images if counted else None
    nothing = checks.check_rest(table, found, known, use, empty)
    said += [] if nothing is None else [nothing]
    if all(verdict.level == 'notable' for verdict in said):
        said.append(checks.describe(table, found, len(images), use))
    place = np.full(len(table.image_ids) + 1, -1)
    place[images] = np.arange(len(images))
    objects = np.stack([place[table.image_places], found.label], 1)
    objects = objects[found.kept]
    return said, Judged(
        use,
        table.image_ids[images].tolist(),
        [table.file_names[i] for i in images],
        table.sizes[images],
        objects[objects[:, 0] >= 0],
        counted,
    )


def _compare_labels(labels: list[_Labels]) -> Iterator[Verdict]:
    """Yield where a label means another category than in training."""
    first = next((x for x in labels if x.role == 'train'), labels[0])
    for path, role, names in labels:
        differing = [
            f'label {i} is {here!r} there and {there!r} in {first.path}'
            for i, (here, there) in enumerate(zip_longest(names, first.names))
            if here != there
        ]
        if differing:
            yield Verdict(
                'misleading',
                'categories',
                f'{path}: its categories are not those of {first.path}, or '
                f'in another order: {some(differing, 5)}.',
                'Give both files the same categories in the same order, and '
                'both data sets the same metainfo.classes: mmdet numbers '
                'labels by each file.',
                (role,),
            )


def _compare_images(table: Table, own: list[Judged]) -> Iterator[Verdict]:
    """Yield where an evaluation's file has other images than its data set."""
    files = dict(zip(table.image_ids.tolist(), table.file_names, strict=True))
    names: dict[Hashable, str] = {}
    twice, other = [], []
    for one in own:
        for key, name in zip(one.ids, one.file_names, strict=True):
            if key in names:
                twice.append(f'id {key} ({names[key]}, {name})')
            elif files.get(key, name) != name:
                other.append(f'id {key} ({name}, not {files[key]})')
            names[key] = name
    strange = [f'id {k} ({n})' for k, n in names.items() if k not in files]
    missing = [f'id {k} ({n})' for k, n in files.items() if k not in names]
    data_set = f'({", ".join(dict.fromkeys(j.use.path for j in own))})'
    rows: tuple[tuple[Level, list[str], str], ...] = (
        (
            'broken',
            strange,
            f'lacks {len(strange)} image(s) of its data set {data_set}, at '
            'which pycocotools stops',
        ),
        (
            'misleading',
            missing,
            f'has {len(missing)} image(s) that its data set {data_set} does '
            'not show: their objects count as missed',
        ),
        (
            'misleading',
            other,
            f'has {len(other)} image(s) under the ids of others of its data '
            f'set {data_set}',
        ),
        (
            'misleading',
            twice,
            f'takes {len(twice)} image(s) of its data set {data_set} for '
            'others, whose ids they have',
        ),
    )
    for level, found, what in rows:
        if found:
            yield Verdict(
                level,
                'evaluation',
                f'{table.path}, by which CocoMetric evaluates, {what}: '
                f'{some(found, 5)}.',
                'Give the evaluator the ann_file of its data set, and the '
                'data set neither filter_cfg nor indices.',
            )


def _merged(said: list[Verdict]) -> list[Verdict]:
    """Say once what holds for several uses of a file."""
    found: dict[tuple, Verdict] = {}
    for verdict in said:
        key = verdict[:4]
        before = found[key].roles if key in found else ()
        roles = tuple(dict.fromkeys([*before, *verdict.roles]))
        found[key] = verdict._replace(roles=roles)
    return list(found.values())
