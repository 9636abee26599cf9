# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Pictures and annotations that are not what training takes them for."""

from __future__ import annotations

import logging
from typing import Any, Literal

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, Runner

from ..runtime.annotation_files import check_annotation_files
from ..runtime.config import ConfigError
from ..runtime.pictures import check_loading, innermost
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
    - An image whose size, as the pipeline decodes it, is not the annotation
      file's raises it too: its boxes would lie wrong.
    - Before training rank 0 judges the annotation files of training and
      validation, evaluators' included, by
      :func:`~mmdet_megdet.annotations.judge`. All ranks raise the same
      DataError, with the file and the ids, for what mmdet or pycocotools
      would stumble over, now or after an epoch, and for what they would take
      for something else without a word: labels that mean another category
      there, annotations of categories that ``metainfo.classes`` lacks, boxes
      outside the image. What is only left out or clipped is told as a
      warning.

    ``tools/train.py`` judges by the same function before it builds anything,
    and ``tools/doctor.py`` ahead of all, with the images too. Under another
    program mmdet has built the data sets before any hook runs, and raises by
    itself what it cannot read.

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
        """Judge the annotation files, if this is a training; a collective."""
        check_setup(runner)
        hold_workers(runner)
        # In val() and test() the Runner has not built it.
        if self.annotations == 'off' or not isinstance(
            runner._train_loop, BaseLoop
        ):
            return
        for verdict in check_annotation_files(
            _as_built(runner), mode=self.annotations
        ):
            print_log(
                f'DataCheckHook: {verdict.text} {verdict.remedy}',
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


def _as_built(runner: Runner) -> dict[str, Any]:
    """Return a config of the data sets that a Runner has built.

    The Runner may not have been built from a config.
    """
    cfg: dict[str, Any] = dict(default_scope=runner.default_scope.scope_name)
    for role, loop in (
        ('train', runner._train_loop),
        ('val', runner._val_loop),
    ):
        if isinstance(loop, BaseLoop):
            datasets = innermost(loop.dataloader.dataset)
            cfg[f'{role}_dataloader'] = dict(
                dataset=dict(datasets=[*map(_as_config, datasets)])
            )
            cfg[f'{role}_evaluator'] = runner.cfg.get(f'{role}_evaluator')
    return cfg


def _as_config(dataset: Any) -> dict:
    """Return a built data set's part of a config."""
    transforms = getattr(getattr(dataset, 'pipeline', None), 'transforms', ())
    options = ('with_mask', 'color_type', 'imdecode_backend')
    return dict(
        type=type(dataset),
        ann_file=getattr(dataset, 'ann_file', None),
        metainfo=dict(classes=getattr(dataset, 'metainfo', {}).get('classes')),
        data_prefix=dict(getattr(dataset, 'data_prefix', {})),
        backend_args=getattr(dataset, 'backend_args', None),
        filter_cfg=getattr(dataset, 'filter_cfg', None),
        indices=getattr(dataset, '_indices', None),
        test_mode=getattr(dataset, 'test_mode', False),
        pipeline=[
            dict(
                type=type(step).__name__,
                **{
                    name: getattr(step, name)
                    for name in options
                    if hasattr(step, name)
                },
            )
            for step in transforms
        ],
    )
