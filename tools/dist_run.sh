#!/usr/bin/env bash
# Copyright (c) mmdet_megdet contributors. All rights reserved.
# Runs a Python script on several processes of this machine with torchrun:
#   tools/dist_run.sh PROCESSES SCRIPT [ARGUMENTS]
# The environment that it heeds is described in tools/dist_train.sh.
set -euo pipefail

processes=$1
script=$2
shift 2

source "$(dirname "$0")/interpreter.sh"

nodes=${NNODES:-1}
if [[ $nodes == 1 && -z ${PORT:-} ]]; then
  # A free port: two jobs on one machine must not meet.
  rendezvous=(--standalone)
else
  if [[ $nodes != 1 && ( -z ${NODE_RANK:-} || -z ${MASTER_ADDR:-} ) ]]; then
    echo "error: NNODES=$nodes needs NODE_RANK (0 to $((nodes - 1))) and" \
      'MASTER_ADDR (the address of node 0) in the environment' >&2
    exit 2
  fi
  rendezvous=(
    --nnodes="$nodes" --node-rank="${NODE_RANK:-0}"
    --master-addr="${MASTER_ADDR:-127.0.0.1}" --master-port="${PORT:-29500}"
  )
fi

# torchrun would give each process one thread; on the CPU that idles cores.
if [[ -z ${OMP_NUM_THREADS:-} ]]; then
  threads=$(($(nproc) / processes))
  export OMP_NUM_THREADS=$((threads > 0 ? threads : 1))
fi
# MMEngine would set this one to 1.
export MKL_NUM_THREADS=${MKL_NUM_THREADS:-$OMP_NUM_THREADS}

# After SIGTERM torchrun gives the workers 30 s, which may be too few for an
# update and a checkpoint.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-300}

exec "$PYTHON" -m torch.distributed.run "${rendezvous[@]}" \
  --nproc-per-node="$processes" "$script" --launcher pytorch "$@"
