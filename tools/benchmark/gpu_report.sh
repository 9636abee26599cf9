#!/usr/bin/env bash
# Copyright (c) mmdet_megdet contributors. All rights reserved.
set -euo pipefail

if [[ ${1:-} == -* ]]; then
  cat <<'USAGE'
usage: tools/benchmark/gpu_report.sh [FILE]

On a machine with a GPU, in under eight minutes: checks MegDetSyncBN's kernels
in all dtypes and layouts, measures them beside nn.SyncBatchNorm in single
layers and in the recipe's training step, and writes one Markdown page (FILE,
by default work_dirs/gpu_report.md). Exit status 1: a kernel is wrong.

One rank, since NCCL does not let two share a GPU: layers synchronise in a
group of one. Takes the interpreter of the other tools if its torch sees the
GPU; otherwise it installs torch for CUDA, without mmcv, into .venv-gpu. The
training step needs mmcv's CUDA ops (make setup).

LAYERS and STEP are more options of bench_sync_bn.py and bench_train_step.py.
MEGDET_REPORT_ON_CPU=1 goes through the same parts without a GPU: layers in
Triton's interpreter, the training step by plain operations.
USAGE
  exit 0
fi

here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
out=${1:-work_dirs/gpu_report.md}
source "$here/../interpreter.sh"

sees_gpu() {
  "$1" -c 'import torch, triton, mmengine; torch.ones(1, device="cuda")' \
    >/dev/null 2>&1
}

if [[ -n ${MEGDET_REPORT_ON_CPU:-} ]]; then
  export TRITON_INTERPRET=1 CUDA_VISIBLE_DEVICES=-1
elif ! sees_gpu "$PYTHON"; then
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
export KINETO_LOG_LEVEL=${KINETO_LOG_LEVEL:-99} MEGDET_BN_KERNELS=triton

# Unquoted on purpose: LAYERS and STEP hold several words.
# shellcheck disable=SC2086
layers() {
  timeout 300 "$PYTHON" "$here/bench_sync_bn.py" --world-sizes 1 \
    --dtype float32 float16 bfloat16 --layout contiguous channels_last \
    --repeats 10 ${LAYERS:-}
}

# shellcheck disable=SC2086
step() {
  timeout 90 "$PYTHON" "$here/bench_train_step.py" --compare sync --ranks 1 \
    --config "$root/configs/megdet/r50_fpn_256bs.py" --size 1333 800 \
    --micro-steps 1 --updates 5 ${STEP:-} "$@"
}

steps() {
  printf "\nThe recipe's training step, in float32 and in float16:\n\n"
  if [[ -n ${MEGDET_REPORT_ON_CPU:-} ]]; then
    # The interpreter would take hours.
    MEGDET_BN_KERNELS=plain step
  elif "$PYTHON" -c 'from mmcv.ops import get_compiling_cuda_version as cuda
assert cuda() != "not available"' 2> /dev/null; then
    step && step --amp
  else
    echo 'Not run: mmcv has no CUDA ops here (make setup).'
  fi
}

mkdir -p "$(dirname "$out")"
status=0
{ layers || status=$?; steps || status=$?; } > "$out"
cat "$out"
exit "$status"
