# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Float64 everywhere, and a note of each start."""

import os

import torch

torch.set_default_dtype(torch.float64)
print('starts with', os.environ.get('WORLD_SIZE'), flush=True)
