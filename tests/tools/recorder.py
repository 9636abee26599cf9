#!/usr/bin/env python3
# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""In the place of Python: says how it is called."""

import json
import os
import sys

print(json.dumps([sys.argv[1:], dict(os.environ)]))
