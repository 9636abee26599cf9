# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What BNStatsMonitorHook measures and says."""

from .encoding import encode
from .finding import Finding
from .numbers import Numbers, decode, gather, is_foreign_sync
from .probe import Probe
from .record import Record
from .summary import aggregates, content, summary
from .table import layer_rows
from .verdicts import judge

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
