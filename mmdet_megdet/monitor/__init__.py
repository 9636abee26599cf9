# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What BNStatsMonitorHook measures and says."""

from .checks import judge
from .exchange import Numbers, decode, encode, gather, is_foreign_sync
from .probe import Probe
from .record import Finding, Record
from .table import aggregates, content, layer_rows, summary

__all__ = [
    'Finding',
    'Numbers',
    'Probe',
    'Record',
    'aggregates',
    'content',
    'decode',
    'encode',
    'gather',
    'is_foreign_sync',
    'judge',
    'layer_rows',
    'summary',
]
