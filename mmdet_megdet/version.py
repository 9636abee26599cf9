# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The one place where the version is written."""

__version__ = '0.1.0'
