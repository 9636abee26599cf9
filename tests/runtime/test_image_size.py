# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The size that a header tells against that which the decoder gives."""

import struct
import warnings
import zlib

import cv2
import mmcv
import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from mmdet_megdet.errors import DataError
from mmdet_megdet.faults.data import is_cut_off
from mmdet_megdet.runtime import image_size
from mmdet_megdet.runtime.image_size import (
    decoded_size,
    is_turned_in_place,
    size_when_decoded,
)

# As PIL names them; OpenCV decodes all of them.
FORMATS = ('JPEG', 'PNG', 'WEBP', 'TIFF', 'AVIF', 'JPEG2000', 'BMP', 'GIF')
XMP = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3'
    b'.org/1999/02/22-rdf-syntax-ns#"><rdf:Description xmlns:tiff="http://ns.'
    b'adobe.com/tiff/1.0/" tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'
)


FLAGS = ('color', 'unchanged', 'color_ignore_orientation')
READERS = [(flag, 'cv2') for flag in FLAGS]
READERS += [('color', 'pillow'), ('color', None)]


def turned(orientation: int) -> dict[str, bytes]:
    """Options for saving an image with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return dict(exif=exif.tobytes())


@pytest.fixture
def save(tmp_path):
    def save(kind: str, **options):
        path = tmp_path / 'image'
        Image.new('RGB', (40, 30), 'gray').save(path, kind, **options)
        return path

    return save


@pytest.mark.parametrize('kind', FORMATS)
@pytest.mark.parametrize(
    'color_type', ['color', 'unchanged', 'color_ignore_orientation']
)
def test_equals_the_decoder(save, monkeypatch, kind, color_type):
    text = PngInfo()
    text.add_itxt('XML:com.adobe.xmp', XMP.decode())
    # In XMP alone, which PIL follows.
    xmp = dict(pnginfo=text) if kind == 'PNG' else dict(xmp=XMP)
    for options in ({}, turned(1), turned(3), xmp, turned(6)):
        path = save(kind, **options)
        image = mmcv.imfrombytes(path.read_bytes(), color_type, backend='cv2')
        expected = image.shape[1], image.shape[0]
        assert size_when_decoded(path, color_type) == expected
        assert decoded_size(path, color_type) == expected
    if color_type == 'color' and kind in ('JPEG', 'PNG', 'WEBP', 'TIFF'):
        assert expected == (30, 40)
    # Nor is an upright one decoded.
    monkeypatch.setattr(
        image_size, 'decoded_size', lambda *_: pytest.fail('decodes')
    )
    upright = {} if kind == 'PNG' else turned(1)
    assert size_when_decoded(save(kind, **upright), color_type) == (40, 30)


def test_exif_behind_the_pixels_of_a_png(save):
    path = save('PNG')
    content = path.read_bytes()
    exif = b'eXIf' + turned(6)['exif'].removeprefix(b'Exif\0\0')
    head, crc = (
        struct.pack('>I', n) for n in (len(exif) - 4, zlib.crc32(exif))
    )
    path.write_bytes(content[:-12] + head + exif + crc + content[-12:])
    assert size_when_decoded(path) == decoded_size(path) == (30, 40)


@pytest.mark.parametrize('kind', ['PNG', 'JPEG'])
def test_beyond_the_limit_of_pil(save, monkeypatch, kind):
    """Large images are sound: PIL refuses them, OpenCV does not."""
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 99)  # in truth 89 million
    path = save(kind)
    with pytest.raises(Image.DecompressionBombError):
        Image.open(path)
    assert size_when_decoded(path) == (40, 30)
    # More behind the end: whether it is whole only decoding tells.
    path.write_bytes(path.read_bytes() + bytes(9))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert not is_cut_off(path)


@pytest.mark.parametrize('kind', ['JPEG', 'PNG', 'WEBP'])
@pytest.mark.parametrize('turn', [1, 3, 6])
def test_turned_without_another_size(save, kind, turn):
    """Of a square one, or one turned by 180 degrees, no size tells."""
    path = save(kind, **turned(turn))
    assert not is_turned_in_place(path)  # of one colour
    image = np.zeros((30, 30, 3), np.uint8)
    image[:10, :10] = 200
    Image.fromarray(image).save(path, kind, **turned(turn))
    assert is_turned_in_place(path) == (turn != 1)
    assert not is_turned_in_place(path, 'color_ignore_orientation')


def test_no_image(save):
    path = save('TGA')
    with pytest.raises(DataError, match='OpenCV has no decoder'):
        size_when_decoded(path)
    path.write_bytes(b'no image')
    with pytest.raises((DataError, cv2.error)):
        size_when_decoded(path)
