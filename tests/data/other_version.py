# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Imported by a config: where the test says so, rank 1 has another mmdet."""

import os

import mmdet

if os.environ.get('UNEQUAL') == '1' and os.environ.get('RANK') == '1':
    mmdet.__version__ = '3.2.0'
