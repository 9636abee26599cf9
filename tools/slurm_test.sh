#!/usr/bin/env bash
# Copyright (c) mmdet_megdet contributors. All rights reserved.
set -euo pipefail

if [[ $# -lt 4 ]]; then
  cat >&2 <<'USAGE'
usage: tools/slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [options of
                           tools/test.py]

Environment: as described by tools/slurm_train.sh.
USAGE
  exit 2
fi

here=$(dirname "$0")
exec "$here/slurm_run.sh" "$1" "$2" "$here/test.py" "$3" "$4" "${@:5}"
