# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Private names of torch, MMEngine and mmdet, each for one purpose."""
