# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""A config's data sets: the folder, the annotation file, the pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .annotations import check_annotations
from .pictures import check_pictures
from .report import Finding, failure, passed, reason, some, warning

_LOADERS = dict(
    train_dataloader='train', val_dataloader='val', test_dataloader='test'
)
_REMEDY = (
    "Set the data set's place: the environment variable that the config "
    'names ({{$NAME:default}} in it), data_root, ann_file or data_prefix.'
)


class DataSet(NamedTuple):
    """One data set in COCO format that a config names.

    Attributes:
        name (str): Whose: 'train', 'val, test'.
        annotations (Path): Annotation file.
        pictures (Path): Folder of the pictures.
        classes (tuple[str]): Class names, in the order of the labels.
        with_masks (bool): Whether its pipeline loads masks.
        config (dict): Its part of the config.
    """

    name: str
    annotations: Path
    pictures: Path
    classes: tuple[str, ...]
    with_masks: bool
    config: dict


def check_data(
    cfg: Any, most_pictures: int | None, decode: bool
) -> Iterator[Finding]:
    """All data sets of a config.

    Args:
        cfg (Config): The config.
        most_pictures (int, optional): How many pictures of each data set to
            read, spread evenly. None: all.
        decode (bool): Whether to decode them wholly instead of reading
            their headers.
    """
    found: dict[tuple, DataSet] = {}
    for loader, name in _LOADERS.items():
        for config in data_sets((cfg.get(loader) or {}).get('dataset')):
            try:
                data_set = describe(config, name)
            except ValueError as error:
                yield warning(
                    f'data ({name})',
                    f'not checked: {error}',
                    'Look through this data set yourself: only annotation '
                    'files in COCO format are checked.',
                )
                continue
            key = data_set[1:5]
            if key in found:
                name = f'{found[key].name}, {name}'
            found[key] = data_set._replace(name=name)
    for data_set in found.values():
        yield from check_data_set(data_set, most_pictures, decode)


def data_sets(config: Any) -> Iterator[dict]:
    """The data sets inside wrappers such as RepeatDataset."""
    if not isinstance(config, dict):
        return
    inner = config.get('dataset') or config.get('datasets')
    if inner is None:
        yield config
    for part in inner if isinstance(inner, list | tuple) else [inner]:
        yield from data_sets(part)


def describe(config: dict, name: str) -> DataSet:
    """Read a data set's part of a config.

    Raises:
        ValueError: If it is not one in COCO format.
    """
    kind, file = config.get('type'), config.get('ann_file')
    if not isinstance(file, str) or not file.endswith('.json'):
        raise ValueError(f'{kind} with ann_file={file!r}')
    root = config.get('data_root') or ''
    prefix = config.get('data_prefix') or {}
    folder = prefix.get('img') or prefix.get('img_path') or ''
    return DataSet(
        name,
        Path(root, file),
        Path(root, folder),
        _classes(config),
        any(step.get('with_mask') for step in config.get('pipeline') or ()),
        config,
    )


def _classes(config: dict) -> tuple[str, ...]:
    """The config's classes, or those of the data set's type."""
    classes = (config.get('metainfo') or {}).get('classes')
    if classes is None:
        from mmengine.registry import DATASETS, init_default_scope

        init_default_scope('mmdet')
        kind = config['type']
        kind = DATASETS.get(kind) if isinstance(kind, str) else kind
        classes = getattr(kind, 'METAINFO', {}).get('classes', ())
    return (classes,) if isinstance(classes, str) else tuple(classes)


def read_annotations(data_set: DataSet) -> dict | Finding:
    """The annotation file's content, or why there is none."""
    check = f'annotations ({data_set.name})'
    path = data_set.annotations
    if not path.is_file():
        return failure(check, f'there is no file {path}', _REMEDY)
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, OSError) as error:
        return failure(
            check,
            f'{path} ({path.stat().st_size} bytes) cannot be read: '
            f'{reason(error)}',
            'The file is truncated or no JSON: copy or download it again.',
        )
    keys = ('images', 'annotations', 'categories')
    absent = [
        key
        for key in keys
        if not isinstance(content, dict)
        or not isinstance(content.get(key), list)
    ]
    if absent:
        return failure(
            check,
            f'{path} has no list {some(absent)}',
            "It is not in COCO's format for detection; convert it.",
        )
    return content


def check_data_set(
    data_set: DataSet, most_pictures: int | None, decode: bool
) -> Iterator[Finding]:
    """One data set: what its file says, then the pictures."""
    content = read_annotations(data_set)
    if isinstance(content, Finding):
        yield content
        return
    yield passed(
        f'annotations ({data_set.name})',
        f'{data_set.annotations}: {len(content["images"])} pictures, '
        f'{len(content["annotations"])} annotations, '
        f'{len(content["categories"])} categories',
    )
    yield from check_annotations(data_set, content)
    if not data_set.pictures.is_dir():
        yield failure(
            f'pictures ({data_set.name})',
            f'there is no folder {data_set.pictures}',
            _REMEDY,
        )
        return
    yield from check_pictures(data_set, content, most_pictures, decode)


class Epoch(NamedTuple):
    """The pictures of a training epoch.

    Attributes:
        images (int): How many, as mmdet filters them.
        mixed (bool): Whether there are portraits and landscapes.
    """

    images: int
    mixed: bool


def training_epoch(cfg: Any) -> Epoch | None:
    """What an epoch sees; None where that is not known."""
    dataset = (cfg.get('train_dataloader') or {}).get('dataset')
    try:
        (config,) = data_sets(dataset)
        data_set = describe(config, 'train')
    except ValueError:
        return None
    content = read_annotations(data_set)
    # A wrapper may repeat it.
    if config is not dataset or isinstance(content, Finding):
        return None
    rule = config.get('filter_cfg') or {}
    least = rule.get('min_size', 0)
    images = [
        image
        for image in content['images']
        if min(image['width'], image['height']) >= least
    ]
    if rule.get('filter_empty_gt'):
        wanted = {
            category['id']
            for category in content['categories']
            if category['name'] in data_set.classes
        }
        used = {
            annotation['image_id']
            for annotation in content['annotations']
            if annotation['category_id'] in wanted
        }
        images = [image for image in images if image['id'] in used]
    portraits = {image['width'] < image['height'] for image in images}
    return Epoch(len(images), len(portraits) > 1)


def classes(cfg: Any) -> tuple[str, ...]:
    """The classes of the training data set; none where it is not known."""
    loader = cfg.get('train_dataloader') or {}
    for config in data_sets(loader.get('dataset')):
        try:
            return describe(config, 'train').classes
        except ValueError:
            return ()
    return ()
