# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""An image or an annotation is damaged, or is not what training expects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from mmengine import dist
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from PIL import JpegImagePlugin, PngImagePlugin

from ..annotations import Verdict, configured, judge, unreadable
from ..errors import ConfigError, DataError
from ..ranks import all_raise
from ..runtime import find_hook, hold_workers
from .setup import built_loops, check_setup

Size = tuple[float, float]  # width and height
Mode = Literal['raise', 'warn', 'off']

# How files of these formats begin and end, and what decodes them strictly.
# (Image.open refuses large images, which OpenCV decodes.)
_FORMATS = (
    (b'\xff\xd8', b'\xff\xd9', JpegImagePlugin.JpegImageFile),
    (b'\x89PNG', b'IEND\xaeB`\x82', PngImagePlugin.PngImageFile),
)
_REMEDY = (
    ' Mend it, or remove it from the annotation file. tools/doctor.py CONFIG '
    '--decode finds all such images.'
)
# What a tool has found in this process, DataCheckHook need not look for again.
_said: dict[str, list[Verdict]] = {}


@HOOKS.register_module()
class DataCheckHook(Hook):
    """Say which image or annotation is at fault, instead of going on.

    - An image that is missing, cut off, of another size than the annotation
      file says, or fails in the pipeline for whatever other reason raises
      :class:`~mmdet_megdet.errors.DataError` with its id and its path, on
      the rank that loads it.
    - Before training all ranks raise the same DataError, with the file and the
      ids, for annotation files that :func:`~mmdet_megdet.annotations.judge`
      finds unusable. What is only left out or clipped is told as a warning.

    Args:
        annotations (str): 'raise'; 'warn', which lets pass what would train
            otherwise than it seems, such as categories left out on purpose;
            or 'off', which does not read the files. Defaults to 'raise'.

    Examples:
        >>> default_hooks = dict(
        ...     data_check=dict(type='DataCheckHook', annotations='warn'))
    """

    # Behind hooks that change a pipeline.
    priority = 'LOW'

    def __init__(self, annotations: Mode = 'raise') -> None:
        if annotations not in ('raise', 'warn', 'off'):
            raise ConfigError(
                f"DataCheckHook: annotations={annotations!r} is not 'raise', "
                "'warn' or 'off'."
            )
        self.annotations = annotations

    def before_run(self, runner: Runner) -> None:
        """Judge the annotation files, if this is a training; a collective."""
        check_setup(runner)
        hold_workers(runner)
        loops = built_loops(runner)
        for loop in loops.values():
            check_loading(loop.dataloader.dataset)
        if self.annotations == 'off' or 'train' not in loops:
            return
        said = check_annotation_files(runner.cfg, mode=self.annotations)
        for v in said:
            runner.logger.warning(f'DataCheckHook: {v.text} {v.remedy}')

    def before_train_epoch(self, runner: Runner) -> None:
        """Wrap pipelines that another hook has replaced, too."""
        check_loading(runner.train_dataloader.dataset)


def check_loading(dataset: Any) -> None:
    """Make a data set, or those in a wrapper, load by CheckedPipeline."""
    # mmdet's MultiImageMixDataset calls it _dataset.
    for name in ('datasets', 'dataset', '_dataset'):
        inner = getattr(dataset, name, ())
        for part in inner if isinstance(inner, list | tuple) else [inner]:
            check_loading(part)
    pipeline = getattr(dataset, 'pipeline', None)
    if type(pipeline) is Compose:
        dataset.pipeline = CheckedPipeline(pipeline)


class CheckedPipeline(Compose):
    """A pipeline whose errors say which image they come from."""

    def __init__(self, pipeline: Compose) -> None:
        self.transforms = pipeline.transforms

    def __call__(self, data: dict) -> dict | None:
        """Load and transform, or raise DataError."""
        path, number = data.get('img_path'), data.get('img_id')
        try:
            if isinstance(path, str | Path) and is_cut_off(path):
                size = Path(path).stat().st_size
                raise EOFError(f'the file is cut off, after {size} bytes')
            return self._transform(data)
        except Exception as error:
            raise DataError(
                f'image {number} ({path}): {type(error).__name__}: {error}'
                f'.{_REMEDY}'
            ) from error

    def _transform(self, data: dict) -> dict | None:
        """Apply the transforms, and look at what loading has made."""
        said: Any = data.get('width'), data.get('height')
        # Some data sets do not know the sizes.
        loaded = 'ori_shape' in data or not all(said)
        for transform in self.transforms:
            data = transform(data)
            if data is None:
                return None
            if not loaded and 'ori_shape' in data:
                loaded = True
                height, width = data['ori_shape'][:2]
                different = other_size((width, height), said)
                if different is not None:
                    raise ValueError(
                        'its boxes would lie wrong, for its size, decoded and '
                        f'in the annotation file, is {different}'
                    )
        return data


def other_size(actual: Size, said: Size) -> str | None:
    """Return how an image's width and height differ from the file's, if so."""
    if actual == said:
        return None
    text = f'{actual[0]}x{actual[1]}, not {said[0]:g}x{said[1]:g}'
    turned = ' (an EXIF orientation turns it, or the file exchanges them)'
    return text + turned * (actual[::-1] == said)


def is_cut_off(path: str | Path) -> bool:
    """Return whether a JPEG or PNG file on a disk ends too early."""
    path = Path(path)
    if not path.is_file():
        return False
    with path.open('rb') as file:
        first = file.read(4)
        file.seek(max(0, path.stat().st_size - 8))
        last = file.read()
    for begin, end, kind in _FORMATS:
        # Some have more behind their end.
        if first.startswith(begin) and not last.endswith(end):
            try:
                with kind(path) as image:
                    image.load()
            except Exception:
                return True
    return False


def check_annotation_files(
    cfg: Config | dict,
    roles: Sequence[str] = ('train', 'val'),
    mode: Mode | None = None,
) -> list[Verdict]:
    """Judge the annotation files of a run; a collective.

    Every rank looks whether files are there; rank 0 reads them. ``mode`` is
    by default that of the config's DataCheckHook. All ranks return what is to
    be told without stopping, or raise the same DataError.
    """
    mode = mode or mode_of(cfg)
    with all_raise():
        uses, evaluations, verdicts = configured(cfg, roles)
        parts: list[Any] = [*uses, *evaluations]
        paths = list(dict.fromkeys(part.path for part in parts))
        verdicts += filter(None, map(unreadable, paths))
        if any(verdict.level == 'broken' for verdict in verdicts):
            text = _refusal(verdicts, 'off')
            alone = dist.get_world_size() == 1
            here = '' if alone else f'rank {dist.get_rank()}: '
            raise DataError(here + text)
    if mode == 'off':
        return []
    told: list[Any] = [None]
    with all_raise():
        if dist.is_main_process():
            states = [Path(path).stat() for path in paths]
            times = [(state.st_mtime_ns, state.st_size) for state in states]
            settings = [use._replace(config={}) for use in uses]
            # All that a judgement depends on.
            key = repr((tuple(roles), settings, evaluations, times))
            if key not in _said:
                _said[key] = judge(cfg, roles).verdicts
            told = [_said[key]]
            if any(is_refused(verdict, mode) for verdict in told[0]):
                raise DataError(_refusal(told[0], mode))
    dist.broadcast_object_list(told)
    return [verdict for verdict in told[0] if verdict.level != 'sound']


def mode_of(cfg: Config | dict) -> Mode:
    """Return a config's ``annotations`` of DataCheckHook, or its default."""
    return (find_hook(cfg, 'DataCheckHook') or {}).get('annotations', 'raise')


def is_refused(verdict: Verdict, mode: Mode) -> bool:
    """Return whether a verdict stops the training from starting."""
    return verdict.level == 'broken' or (
        verdict.level == 'misleading' and mode == 'raise'
    )


def _refusal(verdicts: Sequence[Verdict], mode: Mode) -> str:
    refused = [verdict for verdict in verdicts if is_refused(verdict, mode)]
    text = ' '.join(f'{v.text} {v.remedy}'.strip() for v in refused)
    if all(verdict.level == 'misleading' for verdict in refused):
        text += (
            ' Or say that it is on purpose: default_hooks.data_check='
            "dict(type='DataCheckHook', annotations='warn')."
        )
    return text
