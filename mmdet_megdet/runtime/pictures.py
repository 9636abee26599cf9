# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Loading a picture: whole, or an error that says which one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.dataset import Compose
from PIL import ImageFile, JpegImagePlugin, PngImagePlugin

# How files of these formats begin and end, and what decodes them strictly.
# (Image.open refuses large images, which OpenCV decodes.)
_FORMATS = (
    (b'\xff\xd8', b'\xff\xd9', JpegImagePlugin.JpegImageFile),
    (b'\x89PNG', b'IEND\xaeB`\x82', PngImagePlugin.PngImageFile),
)


class DataError(RuntimeError):
    """A picture or an annotation with which training cannot go on.

    torch hands on what a data worker raises with the worker's whole traceback
    as the message. There the message itself comes first here, and the
    traceback after it.
    """

    def __init__(self, text: str) -> None:
        _, raised, message = text.rpartition(f'{type(self).__name__}: ')
        if raised and text.startswith('Caught '):
            text = f'{message.strip()}\n\n{text}'
        super().__init__(text)


class CheckedPipeline(Compose):
    """A pipeline whose errors say which picture they come from.

    OpenCV makes a grey rest of what is missing at a JPEG's end, and turns an
    image as its EXIF entry says, after which its boxes lie elsewhere. Training
    would go on with that; here it is an error.

    Args:
        pipeline (Compose): The pipeline; the same transforms are used.
    """

    def __init__(self, pipeline: Compose) -> None:
        self.transforms = pipeline.transforms

    def __call__(self, data: dict) -> dict | None:
        """Load and transform; see :class:`Compose`.

        Raises:
            DataError: If that fails, the image's file is cut off, or the
                image has another size than the annotation file says.
        """
        path, number = data.get('img_path'), data.get('img_id')
        try:
            if isinstance(path, str | Path) and is_cut_off(path):
                size = Path(path).stat().st_size
                raise EOFError(f'the file is cut off, after {size} bytes')
            return self._transform(data)
        except FileNotFoundError as error:
            raise DataError(
                f'image {number}: there is no file {error.filename or path}'
                f'.{_REMEDY}'
            ) from error
        except Exception as error:
            raise DataError(
                f'image {number} ({path}): {type(error).__name__}: {error}'
                f'.{_REMEDY}'
            ) from error

    def _transform(self, data: dict) -> dict | None:
        """Apply the transforms, and look at what loading has made."""
        said = data.get('width'), data.get('height')
        loaded = 'ori_shape' in data or None in said
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


def other_size(
    actual: tuple[int, int], said: tuple[float, float]
) -> str | None:
    """Return how an image's size differs from its annotation file's.

    Args:
        actual (tuple[int, int]): Width and height, as decoded.
        said (tuple[float, float]): As in the file.

    Returns:
        str, optional: None where they are the same.
    """
    if tuple(actual) == tuple(said):
        return None
    text = f'{actual[0]}x{actual[1]}, not {said[0]:g}x{said[1]:g}'
    if tuple(actual[::-1]) == tuple(said):
        text += ' (an EXIF orientation turns it, or the file has width and '
        text += 'height exchanged)'
    return text


_REMEDY = (
    ' Mend it, or remove it from the annotation file. tools/doctor.py CONFIG '
    '--decode finds all such pictures.'
)


def is_cut_off(path: str | Path) -> bool:
    """Whether a JPEG or PNG file on a disk ends too early.

    Two short reads, if the file ends as the format says; only otherwise is
    it decoded. (Some have more behind their end.)

    Args:
        path (str or Path): The picture. Of what is no local file, and of
            other formats, nothing is said.

    Returns:
        bool: True only if it cannot be decoded to its end.
    """
    path = Path(path)
    if not path.is_file():
        return False
    with path.open('rb') as file:
        first = file.read(4)
        file.seek(max(0, path.stat().st_size - 8))
        last = file.read()
    for begin, end, kind in _FORMATS:
        if first.startswith(begin) and not last.endswith(end):
            return not _decodes(path, kind)
    return False


def _decodes(path: Path, kind: type[ImageFile.ImageFile]) -> bool:
    try:
        with kind(path) as image:
            image.load()
    except Exception:
        return False
    return True


def check_loading(dataset: Any) -> None:
    """Makes a data set, or those in a wrapper, load by CheckedPipeline.

    To be called before workers start; twice does no harm.

    Args:
        dataset (Dataset): As built from a config.
    """
    for one in innermost(dataset):
        pipeline = getattr(one, 'pipeline', None)
        if type(pipeline) is Compose:
            one.pipeline = CheckedPipeline(pipeline)


def innermost(dataset: Any) -> Iterator[Any]:
    """The data sets inside wrappers such as RepeatDataset."""
    # mmdet's MultiImageMixDataset calls it _dataset.
    for name in ('datasets', 'dataset', '_dataset'):
        inner = getattr(dataset, name, None)
        if inner is not None:
            for part in inner if isinstance(inner, list | tuple) else [inner]:
                yield from innermost(part)
            return
    yield dataset
