# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""All annotation files of a config, each read once, and compared."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..text import some
from . import checks
from .datasets import Use, configured, inner_of, type_name
from .reading import read_annotations
from .table import Table
from .verdict import Level, Verdict


class Judged(NamedTuple):
    """A data set, and what its annotation file says."""

    use: Use
    # Of the images that it keeps:
    ids: list[Hashable]
    file_names: list[str]
    sizes: np.ndarray  # width and height, (n, 2)
    counted: bool  # whether it is known which these are


class Judgement(NamedTuple):
    """Everything that a config's annotation files say."""

    verdicts: list[Verdict]  # file by file
    data_sets: list[Judged]  # those whose files could be read


def judge(
    cfg: Any, roles: Sequence[str] = ('train', 'val', 'test')
) -> Judgement:
    """Judge the annotation files that a config names for these roles."""
    uses, evaluations, said = configured(cfg, roles)
    classes = {use.role: use.classes for use in reversed(uses)}
    predicted = {e.role for e in evaluations if e.format_only}
    judged: list[Judged] = []
    evaluated: list[tuple[str, Table]] = []
    labels: list[tuple[str, str, list[str]]] = []
    readers: list[Any] = [*uses, *evaluations]
    for path in dict.fromkeys(reader.path for reader in readers):
        here = [reader for reader in readers if reader.path == path]
        of_all = tuple(dict.fromkeys(reader.role for reader in here))
        table = read_annotations(path, any(r.with_masks for r in here))
        if not isinstance(table, Table):
            said += _for(of_all, table)
            continue
        said += _for(of_all, checks.check_file(table))
        for reader in here:
            role = reader.role
            # Evaluations have the classes of their data set.
            names = getattr(reader, 'classes', classes.get(role, ()))
            found = [name for _, name in checks.labels_of(table, names)]
            labels.append((path, role, found))
            if isinstance(reader, Use):
                verdicts, one = _judge_use(table, reader, role in predicted)
                judged.append(one)
            elif not reader.format_only:
                masks = reader.with_masks
                verdicts = [*checks.check_evaluation(table, names, masks)]
                evaluated.append((role, table))
            else:
                verdicts = []
            said += _for((role,), verdicts)
    if judged:
        # A label means what it does in training.
        trained = (one for one in labels if one[1] == 'train')
        first, _, wanted = next(trained, labels[0])
        for path, role, names in labels:
            differ = checks.check_labels(path, names, wanted, first)
            said += _for((role,), differ)
    for role, table in evaluated:
        own = [one for one in judged if one.use.role == role]
        if own and all(one.counted for one in own):
            said += _for((role,), _compare_images(table, own))
    return Judgement(_merged(said), judged)


def _for(roles: tuple[str, ...], found: Iterable[Verdict]) -> list[Verdict]:
    return [verdict._replace(roles=roles) for verdict in found]


def _judge_use(
    table: Table, use: Use, predicted: bool
) -> tuple[list[Verdict], Judged]:
    """Judge a data set, of which images may only be predicted."""
    found = checks.instances_of(table, use.classes)
    names = [name for _, name in checks.labels_of(table, use.classes)]
    said = [*checks.check_labels(use.path, names, use.classes, 'the config')]
    images, counted = np.arange(len(table.image_ids)), use.filters
    try:
        images = checks.used_images(table, found, use)
    except (IndexError, TypeError, ValueError):
        text = (
            f'{use.path}: indices={use.indices!r} is neither a number nor a '
            f'list of places among its {len(images)} images.'
        )
        said.append(Verdict('broken', text, 'Mend them.'))
        counted = False
    said += checks.check_annotations(table, found, use)
    kept = found.kept
    if counted:
        kept = kept & np.isin(table.image_places, images)
    # Crowds are there to be ignored.
    learnt = kept & (table.iscrowd <= 0) if use.role == 'train' else kept
    remedy = 'Is it the right file, and the right rule?'
    if not len(images) and (counted or not len(table.image_ids)):
        text = (
            f'{use.path}: not one of its {len(table.image_ids)} images is '
            f'left by filter_cfg={use.rule} and indices={use.indices}.'
        )
        said.append(Verdict('broken', text, remedy))
    elif not (predicted or learnt.any()):
        text = (
            f'{use.path}: not one of its {len(table.ids)} annotations is '
            f'left: {found.flat.sum()} without area, {found.outside.sum()} '
            f'outside their image, {(found.label < 0).sum()} of other '
            f'categories, {(~found.known).sum()} of no image or with ignore, '
            f'{(table.iscrowd > 0).sum()} crowds.'
        )
        said.append(Verdict('misleading', text, remedy))
    if all(verdict.level == 'notable' for verdict in said):
        text = (
            f'{use.path}: {len(images)} of {len(table.image_ids)} images are '
            f'used, {kept.sum()} of {len(table.ids)} annotations.'
        )
        said.append(Verdict('sound', text))
    return said, Judged(
        use,
        table.image_ids[images].tolist(),
        [table.file_names[i] for i in images],
        table.sizes[images],
        counted,
    )


def _compare_images(table: Table, own: list[Judged]) -> Iterator[Verdict]:
    """Yield where an evaluation's file has other images than its data set."""
    files = dict(zip(table.image_ids.tolist(), table.file_names, strict=True))
    names: dict[Hashable, str] = {}
    other = []
    for one in own:
        for key, name in zip(one.ids, one.file_names, strict=True):
            if key in names or files.get(key, name) != name:
                other.append(f'id {key} ({name})')
            names[key] = name
    strange = [f'id {k} ({n})' for k, n in names.items() if k not in files]
    missing = [f'id {k} ({n})' for k, n in files.items() if k not in names]
    data_sets = ', '.join(dict.fromkeys(one.use.path for one in own))
    rows: tuple[tuple[Level, str, list[str]], ...] = (
        ('broken', 'lacks', strange),
        ('misleading', 'has, and they do not show,', missing),
        ('misleading', 'has others under the ids of', other),
    )
    for level, what, found in rows:
        if found:
            yield Verdict(
                level,
                f'{table.path}, by which CocoMetric evaluates {data_sets}, '
                f'{what} {len(found)} image(s): {some(found, 5)}.',
                'Give the evaluator the ann_file of its data set, and the '
                'data set neither filter_cfg nor indices.',
            )


def _merged(said: list[Verdict]) -> list[Verdict]:
    """Say once what holds for several uses of a file."""
    roles: dict[tuple, dict[str, None]] = {}
    for verdict in said:
        roles.setdefault(verdict[:3], {}).update(dict.fromkeys(verdict.roles))
    return [Verdict(*key)._replace(roles=tuple(roles[key])) for key in roles]


class Epoch(NamedTuple):
    """The images of a training epoch."""

    images: int  # as mmdet filters and repeats them
    mixed: bool  # whether there are portraits and landscapes


def training_epoch(cfg: Any, judgement: Judgement) -> Epoch | None:
    """Return the images of a config's training epoch, if its files tell."""
    portraits = {
        id(one.use.config): (one.sizes[:, 0] < one.sizes[:, 1]).tolist()
        for one in judgement.data_sets
        if one.counted
    }
    loader = cfg.get('train_dataloader') or {}
    found = _portraits(loader.get('dataset'), portraits)
    return None if found is None else Epoch(len(found), len(set(found)) == 2)


def _portraits(config: Any, known: dict[int, list[bool]]) -> list[bool] | None:
    """Return whether each image of a data set, or a wrapper, is upright."""
    inner = inner_of(config or {})
    if inner is None:
        return known.get(id(config))
    times = {
        'ConcatDataset': 1,
        'MultiImageMixDataset': 1,
        'RepeatDataset': config.get('times'),
    }.get(type_name(config.get('type')))
    parts = [_portraits(part, known) for part in inner]
    if times is None or None in parts:
        return None
    return times * [upright for part in parts for upright in part or ()]
