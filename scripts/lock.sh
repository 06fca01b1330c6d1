#!/usr/bin/env bash
# Regenerates requirements/dev.lock: every package of the development environment, pinned exactly.
#
#   scripts/lock.sh            new versions where there are any
#   TORCH=… TRITON=… scripts/lock.sh
#
# torch and triton are left out of the resolution and pinned by hand: a torch wheel asks for one Triton
# exactly, and this project is tested beside several.
set -euo pipefail
cd "$(dirname "$0")/.."

TORCH=${TORCH:-2.13.0}
TRITON=${TRITON:-3.9.0}
TRITON_PY310=${TRITON_PY310:-3.8.0} # Triton 3.9 has no wheel for Python 3.10

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet --disable-pip-version-check uv

printf '%s ; sys_platform == "never"\n' torch triton >"$work/overrides"
"$work/env/bin/uv" pip compile --quiet --no-python-downloads --universal --upgrade \
    --python-version 3.10 --no-header --no-annotate --no-emit-index-url \
    --override "$work/overrides" requirements/dev.in >"$work/resolved"

{
    echo "# Written by scripts/lock.sh from requirements/dev.in; do not edit."
    echo "# Installed without dependency resolution by scripts/dev_env.sh: the list is complete."
    echo "torch==$TORCH"
    echo "triton==$TRITON ; python_full_version >= '3.11'"
    echo "triton==$TRITON_PY310 ; python_full_version < '3.11'"
    grep -v "sys_platform == 'win32'" "$work/resolved" # Linux only
} >requirements/dev.lock.new
mv requirements/dev.lock.new requirements/dev.lock
echo "requirements/dev.lock: $(grep -c == requirements/dev.lock) pins"
