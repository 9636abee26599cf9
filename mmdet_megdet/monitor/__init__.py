# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The measurements and checks of BNStatsMonitorHook.

An iteration goes through it so: :mod:`.probe` listens to the layers,
:mod:`.exchange` gathers what all ranks heard, :mod:`.checks` finds what is
wrong, :mod:`.table` makes rows and a summary, :mod:`.record` keeps them.
"""

from .checks import CHECKS, judge
from .exchange import Numbers, decode, encode, gather, is_foreign_sync
from .json_lines import JsonLines
from .probe import Probe
from .record import (
    Finding,
    LayerRecord,
    Record,
    Seconds,
    open_record,
    read_records,
)
from .table import aggregates, layer_rows, make_record, summary

__all__ = [
    'CHECKS',
    'Finding',
    'JsonLines',
    'LayerRecord',
    'Numbers',
    'Probe',
    'Record',
    'Seconds',
    'aggregates',
    'decode',
    'encode',
    'gather',
    'is_foreign_sync',
    'judge',
    'layer_rows',
    'make_record',
    'open_record',
    'read_records',
    'summary',
]
