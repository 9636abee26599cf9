#!/usr/bin/env bash
# Copyright (c) mmdet_megdet contributors. All rights reserved.
set -euo pipefail

if [[ $# -lt 3 || ! $3 =~ ^[1-9][0-9]*$ ]]; then
  cat >&2 <<'USAGE'
usage: tools/dist_test.sh CONFIG CHECKPOINT GPUS [options of tools/test.py]

Evaluates on GPUS processes of this machine. Environment: as described by
tools/dist_train.sh.
USAGE
  exit 2
fi

here=$(dirname "$0")
exec "$here/dist_run.sh" "$3" "$here/test.py" "$1" "$2" "${@:4}"
