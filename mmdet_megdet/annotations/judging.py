# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""All annotation files of a config, each read once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import verdicts
from .datasets import ROLES, Evaluation, Use, configured
from .reading import read_annotations
from .table import Table, listed
from .verdict import Level, Verdict


class Judged(NamedTuple):
    """A data set, as its file says.

    Attributes:
        use (Use): The data set.
        ids (list): Ids of the images that it keeps.
        file_names (list[str]): Of these images.
        sizes (ndarray): Width and height of these images, (n, 2).
        labels (list[str]): Names of the labels, by the file.
        objects (ndarray): Place among these images, and label, of each
            object that is used, (k, 2).
        counted (bool): Whether it is known which images are kept.
    """

    use: Use
    ids: list[Hashable]
    file_names: list[str]
    sizes: np.ndarray
    labels: list[str]
    objects: np.ndarray
    counted: bool


class _Evaluated(NamedTuple):
    evaluation: Evaluation
    ids: list[Hashable]
    file_names: list[str]
    labels: list[str]


class Judgement(NamedTuple):
    """Everything that a config's annotation files say.

    Attributes:
        verdicts (list[Verdict]): File by file.
        data_sets (list[Judged]): Those whose files could be read.
    """

    verdicts: list[Verdict]
    data_sets: list[Judged]


def judge(cfg: Any, roles: Sequence[str] = ROLES) -> Judgement:
    """Judge the annotation files that a config names.

    Args:
        cfg (Config or dict): The config.
        roles (Sequence[str]): For which of 'train', 'val' and 'test'.
    """
    uses, evaluations, said = configured(cfg, roles)
    judged: list[Judged] = []
    evaluated: list[_Evaluated] = []
    for path in dict.fromkeys(x.path for x in [*uses, *evaluations]):
        here = [use for use in uses if use.path == path]
        by = [e for e in evaluations if e.path == path]
        in_roles = tuple(dict.fromkeys(x.role for x in [*here, *by]))
        table = read_annotations(path, any(x.with_masks for x in [*here, *by]))
        if not isinstance(table, Table):
            said += [verdict._replace(roles=in_roles) for verdict in table]
            continue
        ids = verdicts.judge_ids(table, path)
        said += [verdict._replace(roles=in_roles) for verdict in ids]
        for use in here:
            empty = _level_of_nothing(use, uses, evaluations)
            found, one = _judge_use(table, use, empty)
            said += found
            judged.append(one)
        for evaluation in by:
            found, labels = _judge_evaluation(table, evaluation, uses)
            said += found
            evaluated.append(
                _Evaluated(
                    evaluation,
                    table.image_ids.tolist(),
                    table.file_names,
                    labels,
                )
            )
    said += _compare_labels(judged, evaluated)
    for one in evaluated:
        said += _compare_images(one, judged)
    return Judgement(_merged(said), judged)


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
    found = verdicts.instances_of(table, use.classes)
    said = list(verdicts.judge_labels(table, use))
    try:
        images = verdicts.used_images(table, found, use)
        counted = use.filters
    except (IndexError, TypeError, ValueError):
        said.append(verdicts.wrong_indices(table, use))
        images, counted = np.arange(len(table.image_ids)), False
    said += verdicts.judge_categories(table, found, use)
    said += verdicts.judge_boxes(table, found, use)
    said += verdicts.judge_masks(table, found, use)
    known = images if counted else None
    said += verdicts.judge_rest(table, found, known, use, empty)
    if all(verdict.level == 'notable' for verdict in said):
        said.append(verdicts.describe(table, found, len(images), use))
    place = np.full(len(table.image_ids) + 1, -1)
    place[images] = np.arange(len(images))
    objects = np.stack([place[found.image], found.label], 1)[found.kept]
    return [verdict._replace(roles=(use.role,)) for verdict in said], Judged(
        use,
        table.image_ids[images].tolist(),
        [table.file_names[i] for i in images],
        table.sizes[images],
        [name for _, name in verdicts.labels_of(table, use.classes)],
        objects[objects[:, 0] >= 0],
        counted,
    )


def _judge_evaluation(
    table: Table, evaluation: Evaluation, uses: list[Use]
) -> tuple[list[Verdict], list[str]]:
    """Judge by the classes of the data set that is evaluated."""
    classes = next(
        (use.classes for use in uses if use.role == evaluation.role), ()
    )
    labels = verdicts.labels_of(table, classes, evaluation.sort_categories)
    wanted = {key for key, _ in labels}
    said = verdicts.judge_evaluation(table, evaluation, wanted)
    said = [verdict._replace(roles=(evaluation.role,)) for verdict in said]
    return said, [name for _, name in labels]


def _compare_labels(
    judged: list[Judged], evaluated: list[_Evaluated]
) -> Iterator[Verdict]:
    """Yield where a label means another category than in training."""
    if not judged:
        return
    first = next((j for j in judged if j.use.role == 'train'), judged[0])
    others = [(j.use.path, j.use.role, j.labels) for j in judged]
    others += [
        (e.evaluation.path, e.evaluation.role, e.labels) for e in evaluated
    ]
    for path, role, labels in others:
        if labels == first.labels:
            continue
        longest = max(len(labels), len(first.labels))
        here, there = (
            [*names, *[None] * (longest - len(names))]
            for names in (labels, first.labels)
        )
        differing = [
            f'label {i} is {h!r} there and {t!r} in {first.use.path}'
            for i, (h, t) in enumerate(zip(here, there, strict=True))
            if h != t
        ]
        yield Verdict(
            'misleading',
            'categories',
            f'{path}: its categories are not those of {first.use.path}, or '
            f'in another order: {listed(differing)}.',
            'Give both files the same categories in the same order, and both '
            'data sets the same metainfo.classes: mmdet numbers labels by '
            'each file.',
            (role,),
        )


def _compare_images(
    evaluated: _Evaluated, judged: list[Judged]
) -> Iterator[Verdict]:
    """Yield where an evaluation knows other images than its data set."""
    evaluation = evaluated.evaluation
    own = [j for j in judged if j.use.role == evaluation.role]
    if not own or evaluation.format_only or not all(j.counted for j in own):
        return
    files = dict(zip(evaluated.ids, evaluated.file_names, strict=True))
    names: dict[Hashable, str] = {}
    twice, other = [], []
    for one in own:
        for key, name in zip(one.ids, one.file_names, strict=True):
            if key in names:
                twice.append(f'id {key} ({names[key]}, {name})')
            elif files.get(key, name) != name:
                other.append(f'id {key} ({name}, not {files[key]})')
            names[key] = name
    strange = [
        f'id {key} ({n})' for key, n in names.items() if key not in files
    ]
    missing = [
        f'id {key} ({n})' for key, n in files.items() if key not in names
    ]
    paths = ', '.join(dict.fromkeys(j.use.path for j in own))
    for level, found, what in (
        (
            'broken',
            strange,
            f'lacks {len(strange)} image(s) of its data set ({paths}), '
            'at which pycocotools stops',
        ),
        (
            'misleading',
            missing,
            f'has {len(missing)} image(s) that its data set ({paths}) does '
            'not show: their objects count as missed',
        ),
        (
            'misleading',
            other,
            f'has {len(other)} image(s) under the ids of others of its data '
            f'set ({paths})',
        ),
        (
            'misleading',
            twice,
            f'takes {len(twice)} image(s) of its data set ({paths}) for '
            'others, whose ids they have',
        ),
    ):
        if found:
            yield Verdict(
                level,
                'evaluation',
                f'{evaluation.path}, by which CocoMetric evaluates, {what}: '
                f'{listed(found)}.',
                'Give the evaluator the ann_file of its data set, and the '
                'data set neither filter_cfg nor indices.',
                (evaluation.role,),
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
