# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""CPU time and memory of checking annotations, beside mmdet's reading them.

Writes an annotation file as large as COCO's train2017, and lets mmdet's
CocoDataset build itself from it and our check judge it, each in a process of
its own. Exit status 1 if the check takes over a tenth of the time, or makes
memory grow by over a quarter of as much.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from measuring import markdown, parser_of

from mmdet_megdet.arguments import positive

# Of train2017, with polygons of so many points.
IMAGES, OBJECTS_PER_IMAGE, POINTS = 118_287, 911_590 / 118_287, 23
MOST_TIME, MOST_MEMORY = 1 / 10, 1 / 4
DATA_SET = "mmdet's CocoDataset"
RUNS = (DATA_SET, 'check, boxes', 'check, masks too')


def write_file(path: Path, images: int) -> None:
    """Write a file in COCO's format, its entries in COCO's manner."""
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
            for _ in range(POINTS)
            for start, extent in ((x, w), (y, h))
        ]
        return dict(
            segmentation=[polygon],
            area=round(w * h / 2, 4),
            iscrowd=0,
            image_id=int(i / OBJECTS_PER_IMAGE),
            bbox=[round(value, 2) for value in (x, y, w, h)],
            category_id=draw.choice(ids),
            id=900_000 + i,
        )

    annotations = range(int(images * OBJECTS_PER_IMAGE))
    content = dict(
        images=list(map(image, range(images))),
        annotations=list(map(annotation, annotations)),
        categories=[
            dict(supercategory='thing', id=key, name=name)
            for key, name in zip(ids, names, strict=True)
        ],
    )
    path.write_text(json.dumps(content))


def measure(name: str, path: Path) -> tuple[float, float]:
    """Do one of the runs; return s of CPU time, and MB of memory's growth."""
    from mmengine.registry import DATASETS, init_default_scope

    from mmdet_megdet.annotations import judge

    init_default_scope('mmdet')
    # Imports all that registers something, as training has done by then.
    with DATASETS.switch_scope_and_registry('mmdet') as registry:
        registry.get('CocoDataset')
    dataset: dict[str, Any] = dict(
        type='CocoDataset',
        ann_file=str(path),
        data_prefix=dict(img=''),
        filter_cfg=dict(filter_empty_gt=True, min_size=32),
        pipeline=[dict(type='LoadAnnotations', with_mask='masks' in name)],
    )
    before, started = memory('VmRSS'), time.process_time()
    if name == DATA_SET:
        DATASETS.build(dataset)
    else:
        loader = dict(dataset=dataset)
        found = judge(dict(default_scope='mmdet', train_dataloader=loader))
        assert {verdict.level for verdict in found.verdicts} == {'sound'}
    return time.process_time() - started, memory('VmHWM') - before


def memory(kind: str) -> float:
    """Return MB that this process holds, or held at most."""
    status = Path('/proc/self/status').read_text()
    return int(re.search(rf'{kind}:\s+(\d+) kB', status)[1]) / 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Compare; return the exit status."""
    parser = parser_of(__doc__)
    parser.add_argument(
        '--images', type=positive, default=IMAGES, help='in it'
    )
    args = parser.parse_args(argv)
    spawn = multiprocessing.get_context('spawn')
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'annotations.json')
        write_file(path, args.images)
        print(f'{path.stat().st_size / 1e6:.0f} MB of annotations')
        for name in RUNS:
            with ProcessPoolExecutor(1, mp_context=spawn) as process:
                s, mb = process.submit(measure, name, path).result()
            rows.append({'run': name, 'CPU s': s, 'MB': mb})
    for row in rows:
        row['x time'] = row['CPU s'] / rows[0]['CPU s']
        row['x memory'] = row['MB'] / rows[0]['MB']
    print(markdown(rows))
    within = all(
        row['x time'] <= MOST_TIME and row['x memory'] <= MOST_MEMORY
        for row in rows[1:]
    )
    return 0 if within else 1


if __name__ == '__main__':
    sys.exit(main())
