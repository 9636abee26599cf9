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
  MAX_RESTARTS     with NNODES=MIN:MAX: see below (20)
  OMP_NUM_THREADS  threads per process (cores / GPUS)
  PYTHON           interpreter (python, or .venv where make set it up)
  TORCH_ELASTIC_SHUTDOWN_TIMEOUT
                   seconds from SIGTERM to SIGKILL (300)

NNODES=MIN:MAX (with --resume, without NODE_RANK): training goes on with the
machines that there are, from MIN to MAX. The one at MASTER_ADDR stays.
docs/hardware.md, 'Machines that come and go', says more.
USAGE
  exit 2
fi

here=$(dirname "$0")
exec "$here/dist_run.sh" "$2" "$here/train.py" "$1" "${@:3}"
