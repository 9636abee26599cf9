# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What ``tools/doctor.py`` and ``tools/dist_doctor.py`` check.

Each check gives findings and imports what it looks at only when it runs, so
that a broken installation is a finding and not the end of the program.
"""

import warnings

# mmengine, mmcv and mmdet import it, each with a warning in many lines.
warnings.filterwarnings('ignore', message='pkg_resources is deprecated')
