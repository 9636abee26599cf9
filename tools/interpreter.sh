# Copyright (c) mmdet_megdet contributors. All rights reserved.
# Sourced by dist_run.sh and slurm_run.sh. Sets PYTHON: the one given, else
# that of the active environment, else .venv where make set it up.
own=$(dirname "${BASH_SOURCE[0]}")/../.venv/bin/python
if [[ -z ${PYTHON:-} && -z ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} && -x $own ]]; then
  PYTHON=$own
fi
PYTHON=${PYTHON:-python}
