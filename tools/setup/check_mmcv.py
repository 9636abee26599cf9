# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Exit with an error unless the installed mmcv's compiled ops work here.

Where torch sees a GPU the ops must run there too.
"""

from __future__ import annotations

import sys


def check() -> None:
    """Call two ops with known answers on each device that torch sees."""
    import torch
    from mmcv.ops import nms, roi_align

    boxes = torch.tensor(
        [[0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30]], dtype=torch.float
    )
    scores = torch.tensor([0.9, 0.8, 0.7])
    image = torch.full((1, 1, 8, 8), 3.0)
    roi = torch.tensor([[0.0, 1, 1, 5, 5]])
    for device in ('cpu', 'cuda') if torch.cuda.is_available() else ('cpu',):
        # The first two boxes overlap by 81 / 119 > 0.5.
        _, kept = nms(boxes.to(device), scores.to(device), 0.5)
        if kept.tolist() != [0, 2]:
            raise RuntimeError(f'nms on {device} kept {kept.tolist()}')
        pooled = roi_align(image.to(device), roi.to(device), (2, 2))
        # Of a constant image any bilinear mean is that constant.
        if not torch.allclose(pooled.cpu(), torch.full((1, 1, 2, 2), 3.0)):
            raise RuntimeError(f'roi_align on {device} gave {pooled.tolist()}')


if __name__ == '__main__':
    try:
        check()
    except ModuleNotFoundError as error:
        if error.name != 'mmcv._ext':
            raise
        sys.exit('it was built without its ops (there is no mmcv._ext)')
    except Exception as error:
        sys.exit(f'{type(error).__name__}: {error}')
