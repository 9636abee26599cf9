# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""From pixel masks to COCO annotations, exactly."""

from __future__ import annotations

import cv2
import numpy as np
from pycocotools import mask as mask_utils


def annotate(mask: np.ndarray, crowd: bool = False) -> dict:
    """Describe a mask as COCO does.

    Args:
        mask (np.ndarray): The object's visible pixels, (H, W), bool; at least
            one is set.
        crowd (bool): Whether it is a crowd region. Defaults to False.

    Returns:
        dict: ``segmentation`` (polygons; a compressed RLE for a crowd),
        ``area`` (the number of pixels), ``bbox`` (x, y, width, height:
        the tight box) and ``iscrowd``.
    """
    pixels = mask.astype(np.uint8)
    if crowd:
        rle = mask_utils.encode(np.asfortranarray(pixels))
        segmentation = {
            'size': list(mask.shape),
            'counts': rle['counts'].decode('ascii'),
        }
    else:
        segmentation = polygons(pixels)
    return {
        'segmentation': segmentation,
        'area': int(pixels.sum()),
        'bbox': list(cv2.boundingRect(pixels)),
        'iscrowd': int(crowd),
    }


def polygons(mask: np.ndarray) -> list[list[int]]:
    """Trace a mask along its pixels' edges.

    pycocotools gives back the very same mask from these polygons. COCO
    polygons have no holes, so a mask with a hole is cut in two through it.

    Args:
        mask (np.ndarray): (H, W), uint8, 0 or 1; not empty.

    Returns:
        list[list[int]]: One ``[x0, y0, x1, y1, ...]`` per part.
    """
    # OpenCV's contours run through pixel centres. On the mask at double size
    # both pixels beside an edge's end map to that end: (c + 1) // 2.
    double = mask.repeat(2, axis=0).repeat(2, axis=1)
    contours, hierarchy = cv2.findContours(
        double, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE
    )
    holes = [
        contour
        for contour, (*_, parent) in zip(contours, hierarchy[0], strict=True)
        if parent >= 0
    ]
    if not holes:
        return [
            _without_repeats((contour[:, 0] + 1) // 2) for contour in contours
        ]
    left, _, width, _ = cv2.boundingRect(holes[0])
    cut = (2 * left + width) // 4
    halves = mask.copy(), mask.copy()
    halves[0][:, cut:] = 0
    halves[1][:, :cut] = 0
    return polygons(halves[0]) + polygons(halves[1])


def _without_repeats(points: np.ndarray) -> list[int]:
    new = np.any(points != np.roll(points, 1, axis=0), axis=1)
    return points[new].ravel().tolist()
