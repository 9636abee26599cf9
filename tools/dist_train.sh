#!/usr/bin/env bash
# Copyright (c) mmdet_megdet contributors. All rights reserved.
set -euo pipefail

if [[ $# -lt 2 || ! $2 =~ ^[1-9][0-9]*$ ]]; then
  cat >&2 <<'USAGE'
usage: tools/dist_train.sh CONFIG GPUS [options of tools/train.py]

Trains on GPUS processes of this machine: one per GPU, or that many CPU
processes where there is no GPU. Environment, all optional on one machine:
  NNODES           machines (1); run this on each of them
  NODE_RANK        number of this machine, from 0
  MASTER_ADDR      address of machine 0
  PORT             port on machine 0 (29500; one machine: a free one)
  OMP_NUM_THREADS  threads per process (cores / GPUS)
  PYTHON           interpreter (python, or .venv where make set it up)
  TORCH_ELASTIC_SHUTDOWN_TIMEOUT
                   seconds from SIGTERM to SIGKILL (300)
USAGE
  exit 2
fi

here=$(dirname "$0")
exec "$here/dist_run.sh" "$2" "$here/train.py" "$1" "${@:3}"
