#!/usr/bin/env bash
# Copyright (c) mmdet_megdet contributors. All rights reserved.
set -euo pipefail

if [[ $# -lt 1 || ! $1 =~ ^[1-9][0-9]*$ ]]; then
  cat >&2 <<'USAGE'
usage: tools/dist_doctor.sh GPUS [CONFIG] [options of tools/dist_doctor.py]

Checks what only several ranks together can tell, in under a minute, on GPUS
processes of this machine; on several machines at the same time as
tools/dist_train.sh, whose environment variables it takes.
USAGE
  exit 2
fi

# Nobody has anything to save when one of them fails.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-5}

here=$(dirname "$0")
exec "$here/dist_run.sh" "$1" "$here/dist_doctor.py" "${@:2}"
