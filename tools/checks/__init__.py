# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What ``tools/doctor.py`` and ``tools/dist_doctor.py`` check.

A check yields findings. :mod:`.report`, :mod:`.packages` and :mod:`.machine`
import what they look at only when they run, so that a broken installation is
a finding and not the end of the program. A tool that imports this package can
import ``mmdet_megdet`` from a clone.
"""

import importlib.util
import sys
import warnings
from pathlib import Path

if importlib.util.find_spec('mmdet_megdet') is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
# mmengine, mmcv and mmdet import it, each with a warning in many lines.
warnings.filterwarnings('ignore', message='pkg_resources is deprecated')
