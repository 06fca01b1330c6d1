#!/usr/bin/env bash
# The long form of repeated checks (20 fresh processes each); what it found goes to docs/soak.txt.
#
#   scripts/soak.sh PYTHON [pytest arguments]        usually by `make soak`
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT

PINNER_SOAK=1 "$python" -m pytest -m soak --no-header -p no:cacheprovider -rA --capture=sys \
    -v --tb=short "$@" 2>&1 | tee "$log"
{
    echo "# The long form of the repeated checks, as \`make soak\` printed it"
    "$python" - <<'PY'
import importlib.metadata as m, platform
names = ("torch", "triton", "numpy", "fla-core")
versions = ", ".join(f"{n} {m.version(n)}" for n in names)
print(f"# Python {platform.python_version()}, {platform.machine()}; {versions}")
PY
    sed "s|$PWD/||g" "$log"
} >docs/soak.txt
echo "soak: written to docs/soak.txt"
