#!/usr/bin/env bash
# Copyright (c) mmdet_megdet contributors. All rights reserved.
# Runs a Python script as a Slurm job step:
#   tools/slurm_run.sh PARTITION JOB_NAME SCRIPT [ARGUMENTS]
# The environment that it heeds is described in tools/slurm_train.sh.
set -euo pipefail

partition=$1
job_name=$2
script=$3
shift 3

source "$(dirname "$0")/interpreter.sh"

gpus_per_node=${GPUS_PER_NODE:-8}
# Unquoted on purpose: SRUN_ARGS holds several words.
# shellcheck disable=SC2086
exec srun --partition="$partition" --job-name="$job_name" \
  --gres="gpu:$gpus_per_node" --ntasks="${GPUS:-8}" \
  --ntasks-per-node="$gpus_per_node" --cpus-per-task="${CPUS_PER_TASK:-5}" \
  --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
  "$PYTHON" -u "$script" --launcher slurm "$@"
