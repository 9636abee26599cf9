#!/usr/bin/env bash
# Copyright (c) mmdet_megdet contributors. All rights reserved.
set -euo pipefail

if [[ $# -lt 2 ]]; then
  cat >&2 <<'USAGE'
usage: tools/slurm_doctor.sh PARTITION JOB_NAME [CONFIG] [options of
                             tools/dist_doctor.py]

Checks what only several ranks together can tell, in under a minute.
Environment: as described by tools/slurm_train.sh.
USAGE
  exit 2
fi

here=$(dirname "$0")
exec "$here/slurm_run.sh" "$1" "$2" "$here/dist_doctor.py" "${@:3}"
