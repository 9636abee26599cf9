#!/usr/bin/env bash
# Copyright (c) mmdet_megdet contributors. All rights reserved.
set -euo pipefail

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  cat <<'USAGE'
usage: tools/benchmark/gpu_report.sh [options of gpu_report.py]

On a machine with a GPU, in under eight minutes: checks MegDetSyncBN's kernels
in all dtypes and layouts, measures them beside nn.SyncBatchNorm, and writes
one Markdown table (--out, by default work_dirs/gpu_report.md).

Takes the interpreter of the other tools if its torch sees the GPU; otherwise
it installs torch for CUDA, without mmcv, into .venv-gpu. With mmcv's CUDA ops
(make setup) the recipe's training step is measured too.
USAGE
  exit 0
fi

here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
source "$here/../interpreter.sh"

sees_gpu() {
  "$1" -c 'import torch, triton, mmengine; torch.ones(1, device="cuda")' \
    >/dev/null 2>&1
}

if ! sees_gpu "$PYTHON" && [[ -z ${MEGDET_REPORT_ON_CPU:-} ]]; then
  own=$root/.venv-gpu
  [[ -x $own/bin/python ]] || python3 -m venv "$own"
  PYTHON=$own/bin/python
  if ! sees_gpu "$PYTHON"; then
    "$PYTHON" -m pip install --quiet -r "$root/requirements/torch.txt"
    "$PYTHON" -m pip install --quiet --no-deps -r "$root/requirements/lock.txt"
  fi
  sees_gpu "$PYTHON" || {
    echo 'error: torch sees no GPU here (nvidia-smi? the driver?)' >&2
    exit 1
  }
fi

# NCCL and the profiler have nothing to say that the table does not.
export KINETO_LOG_LEVEL=${KINETO_LOG_LEVEL:-99}
exec timeout 480 "$PYTHON" "$here/gpu_report.py" "$@"
