# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Pictures and annotations that are not what training takes them for."""

from __future__ import annotations

import logging
from typing import Any, Literal

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, Runner

from ..runtime.annotation_files import AnnotationProblem, find_problems
from ..runtime.config import ConfigError
from ..runtime.pictures import DataError, check_loading, innermost
from ..runtime.setup_check import check_setup
from ..runtime.workers import hold_workers


@HOOKS.register_module()
class DataCheckHook(Hook):
    """Say which picture or annotation is at fault, instead of going on.

    Contract:

    - A picture that is missing, cut off, or fails in the pipeline for
      whatever other reason raises
      :class:`~mmdet_megdet.runtime.pictures.DataError` with its id and its
      path, on the rank that loads it. (OpenCV fills up a JPEG that is cut
      off with grey, and says nothing that stops a training.) Of JPEG and PNG
      on a disk the last bytes are read for it.
    - Before training rank 0 reads the annotation files of training and
      validation once more, if they are in COCO's format, for what mmdet's
      CocoDataset leaves out without a word: annotations of categories that
      ``metainfo.classes`` lacks, or that the file itself does not name; boxes
      outside the picture; annotations of no picture; and files without
      pictures or annotations. All ranks raise the same DataError, with the
      file and the ids. Boxes that reach over an edge, or have no area, are
      told as a warning.

    The rest is ``tools/doctor.py``'s, which also reads all pictures ahead of
    a training. A data set that cannot be built raises before any hook runs;
    ``tools/train.py`` looks for that.

    Args:
        annotations (str): 'raise'; 'warn', for trainings that leave out
            categories on purpose; or 'off', which does not read the files.
            Defaults to 'raise'.

    Examples:
        >>> default_hooks = dict(
        ...     data_check=dict(type='DataCheckHook', annotations='warn'))
    """

    # Behind hooks that change a pipeline.
    priority = 'LOW'

    def __init__(
        self, annotations: Literal['raise', 'warn', 'off'] = 'raise'
    ) -> None:
        if annotations not in ('raise', 'warn', 'off'):
            raise ConfigError(
                f"DataCheckHook: annotations={annotations!r} is not 'raise', "
                "'warn' or 'off'."
            )
        self.annotations = annotations

    def before_run(self, runner: Runner) -> None:
        """Check the annotation files, if this is a training; a collective."""
        check_setup(runner)
        hold_workers(runner)
        # In val() and test() the Runner has not built it.
        if self.annotations == 'off' or not isinstance(
            runner._train_loop, BaseLoop
        ):
            return
        found: list[Any] = [_problems(runner) if is_main_process() else None]
        broadcast_object_list(found)
        problems: list[AnnotationProblem] = found[0]
        grave = [problem.text for problem in problems if problem.grave]
        if grave and self.annotations == 'raise':
            raise DataError(
                f'{" ".join(grave)} mmdet would leave them out of training '
                "without a word. Mend the file, or the data set's "
                'metainfo=dict(classes=...); or say that it is on purpose: '
                "default_hooks.data_check.annotations='warn'."
            )
        for problem in problems:
            print_log(
                f'DataCheckHook: {problem.text}',
                logger='current',
                level=logging.WARNING,
            )

    def before_train_epoch(self, runner: Runner) -> None:
        """Check what is loaded from now on."""
        check_loading(runner.train_dataloader.dataset)

    def before_train(self, runner: Runner) -> None:
        """Check what is loaded, where training has no epochs."""
        check_loading(runner.train_dataloader.dataset)

    def before_val(self, runner: Runner) -> None:
        """Check what validation loads."""
        check_loading(runner.val_dataloader.dataset)

    def before_test(self, runner: Runner) -> None:
        """Check what testing loads."""
        check_loading(runner.test_dataloader.dataset)


def _problems(runner: Runner) -> list[AnnotationProblem]:
    found: dict[tuple, list[AnnotationProblem]] = {}
    for loop in (runner._train_loop, runner._val_loop):
        if not isinstance(loop, BaseLoop):
            continue
        for dataset in innermost(loop.dataloader.dataset):
            # Those which read their file by pycocotools.
            if not hasattr(dataset, 'COCOAPI'):
                continue
            classes = dataset.metainfo['classes']
            # A single name is allowed too.
            classes = (classes,) if isinstance(classes, str) else classes
            key = dataset.ann_file, tuple(classes)
            if key not in found:
                found[key] = _of_file(*key)
    return [problem for problems in found.values() for problem in problems]


def _of_file(path: str, classes: tuple[str, ...]) -> list[AnnotationProblem]:
    # Whatever happens on this rank, the others wait to be told.
    try:
        return find_problems(path, classes)
    except Exception as error:
        text = f'{path} was not checked: {type(error).__name__}: {error}'
        return [AnnotationProblem(text, grave=False)]
