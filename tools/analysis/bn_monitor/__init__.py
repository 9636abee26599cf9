# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Figures and a report of what BNStatsMonitorHook measured."""
