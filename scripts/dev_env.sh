#!/usr/bin/env bash
# Makes the development environment in .venv from requirements/dev.lock, and the package itself, editable.
#
#   scripts/dev_env.sh [FOLDER]      PYTHON=python3.12 picks the interpreter
#
# Needs Python 3.10 or newer with venv and pip. Does nothing when the environment is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

env=${1:-.venv}
python=${PYTHON:-python3}
lock=requirements/dev.lock

command -v "$python" >/dev/null || {
    echo "dev_env: expected Python 3.10 or newer as '$python', found none; install it or set PYTHON" >&2
    exit 1
}
"$python" - <<'PY' || exit 1
import sys
if sys.version_info < (3, 10):
    sys.exit("dev_env: expected Python 3.10 or newer, found %d.%d at %s; set PYTHON to a newer one"
             % (sys.version_info[0], sys.version_info[1], sys.executable))
PY

# The stamp holds all that the environment was made from, so a changed pin, script or interpreter remakes it.
want=$({ cat "$lock" pyproject.toml scripts/dev_env.sh; pwd; "$python" -c 'import sys; print(sys.version)'; } | sha256sum)
[ "$(cat "$env/.made-from" 2>/dev/null)" = "$want" ] && exit 0

if ! "$env/bin/python" -c "import sys; sys.exit(sys.version.split()[0] != '$("$python" -c 'import platform; print(platform.python_version())')')" 2>/dev/null; then
    rm -rf "$env"
    "$python" -m venv "$env" || {
        echo "dev_env: '$python -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2
        exit 1
    }
fi
pip() { "$env/bin/python" -m pip --disable-pip-version-check --no-input "$@"; }

started=$(date +%s)
plain=$(mktemp)
trap 'rm -f "$plain"' EXIT
grep -vE '^(torch|triton)==' "$lock" >"$plain"

echo "dev_env: installing $lock into $env"
# torch by itself and with what it asks for: some builds bring CUDA libraries of exact versions along.
torch=$(grep -E '^torch==' "$lock")
if ! "$env/bin/python" -c "import importlib.metadata as m, sys; sys.exit(m.version('torch').split('+')[0] != '${torch#torch==}')" 2>/dev/null; then
    pip install --quiet -c "$plain" "$torch"
fi
pip install --quiet --no-deps -r "$lock"
pip install --quiet --no-deps --no-build-isolation -e .
echo "$want" >"$env/.made-from"
echo "dev_env: done in $(($(date +%s) - started)) s"
