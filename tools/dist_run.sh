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
torchrun=(-m torch.distributed.run)
if [[ $nodes == *:* ]]; then
  if [[ -z ${MASTER_ADDR:-} ]]; then
    echo "error: NNODES=$nodes needs MASTER_ADDR in the environment: the" \
      'address of the machine where the others meet, which stays' >&2
    exit 2
  fi
  torchrun=("$(dirname "$0")/elastic.py")
  rendezvous=(
    --nnodes="$nodes" --rdzv-backend=c10d --rdzv-id=mmdet_megdet
    --rdzv-endpoint="$MASTER_ADDR:${PORT:-29500}"
    --max-restarts="${MAX_RESTARTS:-20}"
  )
  # Without it a machine that joins later waits for one that has left.
  export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
elif [[ $nodes == 1 && -z ${PORT:-} ]]; then
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

exec "$PYTHON" "${torchrun[@]}" "${rendezvous[@]}" \
  --nproc-per-node="$processes" "$script" --launcher pytorch "$@"
