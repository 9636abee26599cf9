# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The only place that uses private names of torch, mmengine and mmdet."""
