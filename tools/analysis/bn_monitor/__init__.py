# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Reading, drawing and reporting what BNStatsMonitorHook measured."""
