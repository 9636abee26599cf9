#!/usr/bin/env bash
# Finds a Python that the package runs on and hands over to install.py.
# PYTHON names one; without it .venv's own comes first, then the usual names.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

version_of() {
  "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null
}

is_supported() {
  case "$1" in 3.10.* | 3.11.* | 3.12.*) return 0 ;; *) return 1 ;; esac
}

fail() {
  echo "set-up: $1" >&2
  exit 1
}

remedy='Install Python 3.10, 3.11 or 3.12, or name one that is there:
  make setup PYTHON=/path/to/python3.11'

if [ -n "${PYTHON:-}" ]; then
  version=$(version_of "$PYTHON") ||
    fail "PYTHON=$PYTHON does not run. $remedy"
  is_supported "$version" ||
    fail "PYTHON=$PYTHON is Python $version; 3.10 to 3.12 is needed. $remedy"
  exec "$PYTHON" "$root/tools/setup/install.py"
fi

found=
for candidate in "$root/.venv/bin/python" \
  python3.11 python3.12 python3.10 python3; do
  version=$(version_of "$candidate") || continue
  if is_supported "$version"; then
    exec "$candidate" "$root/tools/setup/install.py"
  fi
  found="$found $candidate is $version;"
done
fail "Python 3.10 to 3.12 is needed; found:${found:- none;} $remedy"
