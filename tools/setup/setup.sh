#!/usr/bin/env bash
# Finds a Python that the package runs on and hands over to install.py.
# PYTHON names one; without it .venv's own comes first, then the usual names.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
candidates=("$root/.venv/bin/python" python3.11 python3.12 python3.10 python3)
if [[ -n ${PYTHON:-} ]]; then
  candidates=("$PYTHON")
fi

fits='import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))'
tried=
for python in "${candidates[@]}"; do
  if "$python" -c "$fits" 2> /dev/null; then
    lock=$root/.venv.lock
    flock -n "$lock" true || echo 'set-up: waiting for another of this tree'
    exec flock "$lock" "$python" "$root/tools/setup/install.py"
  fi
  version=$("$python" -V 2> /dev/null || echo 'does not run')
  tried+="
  $python: $version"
done

echo "set-up: Python 3.10, 3.11 or 3.12 is needed. Tried:$tried
Install one, or name one that is there:
  make setup PYTHON=/path/to/python3.11" >&2
exit 1
