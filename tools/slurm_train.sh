#!/usr/bin/env bash
# Copyright (c) mmdet_megdet contributors. All rights reserved.
set -euo pipefail

if [[ $# -lt 4 ]]; then
  cat >&2 <<'USAGE'
usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [options of
                            tools/train.py]

Environment, all optional:
  GPUS           GPUs of the job, one process each (8)
  GPUS_PER_NODE  of them on one machine (8)
  CPUS_PER_TASK  cores per process (5)
  SRUN_ARGS      more arguments for srun; they override the ones above
                 (machines without GPUs: SRUN_ARGS=--gres=none)
  MASTER_PORT    port of rank 0 (29500)
  PYTHON         interpreter (python, or .venv where make set it up)

Exit status 75: SIGTERM came and a checkpoint is written; requeue the job and
let it continue with --resume.
USAGE
  exit 2
fi

here=$(dirname "$0")
exec "$here/slurm_run.sh" "$1" "$2" "$here/train.py" "$3" --work-dir "$4" \
  "${@:5}"
