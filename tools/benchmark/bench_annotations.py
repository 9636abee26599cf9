# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Time and memory of checking annotations, beside those of mmdet's reading.

Writes an annotation file as large as COCO's train2017, and lets mmdet's
CocoDataset build itself from it and our check judge it, each in a process of
its own. Exit status 1 if the check takes over a tenth of the time, or makes
memory grow by over a quarter of as much.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

# Of train2017.
IMAGES, ANNOTATIONS = 118_287, 911_590
MOST_TIME, MOST_MEMORY = 1 / 10, 1 / 4
RUNS = {
    'data set': "mmdet's CocoDataset",
    'boxes': 'check, boxes',
    'masks': 'check, masks too',
}


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--images', type=int, default=IMAGES)
    parser.add_argument('--annotations', type=int, default=ANNOTATIONS)
    parser.add_argument(
        '--points', type=int, default=23, help='of a polygon (default: 23)'
    )
    parser.add_argument(
        '--file', help='write it here and keep it, or take it if it is there'
    )
    parser.add_argument('--run', choices=RUNS, help=argparse.SUPPRESS)
    return parser.parse_args()


def write_file(path: Path, images: int, annotations: int, points: int) -> None:
    """Write a file in COCO's format, its entries in COCO's manner.

    Args:
        path (Path): The file.
        images (int): Number of images.
        annotations (int): Number of annotations.
        points (int): Points of each polygon.
    """
    from mmdet.datasets import CocoDataset

    names = CocoDataset.METAINFO['classes']
    # With gaps, as COCO's ids are.
    ids = [i + 1 + i // 8 for i in range(len(names))]
    draw = random.Random(0)

    def image(i: int) -> dict:
        return dict(
            license=1 + i % 8,
            file_name=f'{i:012d}.jpg',
            coco_url=f'http://images.cocodataset.org/train2017/{i:012d}.jpg',
            height=480,
            width=640,
            date_captured='2013-11-14 16:28:13',
            flickr_url=f'http://farm9.staticflickr.com/8186/{i}_4e62_z.jpg',
            id=i,
        )

    def annotation(i: int) -> dict:
        x, y = draw.uniform(0, 400), draw.uniform(0, 300)
        w, h = draw.uniform(20, 220), draw.uniform(20, 170)
        polygon = [
            round(start + draw.random() * extent, 2)
            for _ in range(points)
            for start, extent in ((x, w), (y, h))
        ]
        return dict(
            segmentation=[polygon],
            area=round(w * h / 2, 4),
            iscrowd=0,
            image_id=i * images // annotations,
            bbox=[round(value, 2) for value in (x, y, w, h)],
            category_id=draw.choice(ids),
            id=900_000 + i,
        )

    with path.open('w') as file:
        for start, part in (
            ('{"images": [', map(image, range(images))),
            ('], "annotations": [', map(annotation, range(annotations))),
        ):
            file.write(start)
            for i, entry in enumerate(part):
                file.write((', ' if i else '') + json.dumps(entry))
        categories = [
            dict(supercategory='thing', id=key, name=name)
            for key, name in zip(ids, names, strict=True)
        ]
        file.write(f'], "categories": {json.dumps(categories)}}}')


def measure(name: str, path: Path) -> dict[str, float]:
    """Do one of the runs in this process.

    Returns:
        dict: Seconds, and bytes by which memory grew at its peak.
    """
    # Training has imported it all by then.
    from mmengine.registry import DATASETS, init_default_scope

    from mmdet_megdet.annotations import judge

    init_default_scope('mmdet')
    config: dict[str, Any] = dict(
        type='CocoDataset',
        ann_file=str(path),
        data_prefix=dict(img=''),
        filter_cfg=dict(filter_empty_gt=True, min_size=32),
        pipeline=[dict(type='LoadAnnotations', with_mask=name == 'masks')],
    )
    before, started = resident(), time.perf_counter()
    if name == 'data set':
        with contextlib.redirect_stdout(sys.stderr):
            DATASETS.build(config)
    else:
        cfg = dict(
            default_scope='mmdet', train_dataloader=dict(dataset=config)
        )
        levels = {verdict.level for verdict in judge(cfg).verdicts}
        assert levels == {'sound'}, levels
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return dict(seconds=seconds, bytes=peak - before)


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    pages = int(Path('/proc/self/statm').read_text().split()[1])
    return pages * os.sysconf('SC_PAGE_SIZE')


def measure_apart(name: str, path: Path) -> dict[str, float]:
    """Do one of the runs in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, '--run', name, '--file', str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f'error: {RUNS[name]} failed:\n{done.stderr}')
    return json.loads(done.stdout.splitlines()[-1])


def compare(path: Path) -> bool:
    """Print all runs; return whether the checks are within their bounds."""
    first, within = None, True
    for name, title in RUNS.items():
        found = measure_apart(name, path)
        first = first or found
        shares = {key: found[key] / first[key] for key in found}
        print(
            f'{title:22} {found["seconds"]:8.2f} s ({shares["seconds"]:6.1%})'
            f' {found["bytes"] / 1e6:8.0f} MB ({shares["bytes"]:6.1%})',
            flush=True,
        )
        if name != 'data set':
            within &= shares['seconds'] <= MOST_TIME
            within &= shares['bytes'] <= MOST_MEMORY
    return within


def main() -> int:
    """Compare; return the exit status."""
    args = parse_args()
    if args.run:
        print(json.dumps(measure(args.run, Path(args.file))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(args.file or Path(folder, 'annotations.json'))
        if not path.exists():
            write_file(path, args.images, args.annotations, args.points)
        print(f'{path.stat().st_size / 1e6:.0f} MB of annotations')
        return 0 if compare(path) else 1


if __name__ == '__main__':
    sys.exit(main())
