#!/usr/bin/env bash
# Copyright (c) mmdet_megdet contributors. All rights reserved.
# In the place of Python: notes what it is called with, for warm.py.
set -euo pipefail
{
  printf '%s\0' "$#" "$@"
  env -0
} > "/dev/fd/$RECORD_IN"
