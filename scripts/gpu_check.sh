#!/usr/bin/env bash
# All that needs a GPU, in one command of under ten minutes; a short table comes last.
#
#   scripts/gpu_check.sh LOGS
#
# Runs from the source tree with whatever python3 (or PYTHON) has: torch, Triton and pytest; nothing is
# installed. Full logs go to the folder LOGS. Without a CUDA device it is a dry run: the tests skip.
# Exit code: 0 all passed (or a dry run), 1 something failed, 64 usage, 69 a needed package is missing.
set -uo pipefail

[ $# = 1 ] || {
    echo "usage: scripts/gpu_check.sh LOGS   (a folder for the logs; made where missing)" >&2
    exit 64
}
mkdir -p "$1"
logs=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
export PYTHONPATH=$PWD:$PWD/bisect${PYTHONPATH:+:$PYTHONPATH}
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
started=$(date +%s)
rows=()
failed=0

for package in torch triton pytest; do
    "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$package') is None)" || {
        echo "gpu_check: expected the package $package beside $python, found none" >&2
        exit 69
    }
done

row() { rows+=("$(printf '%-44s %-8s %6s' "$1" "$2" "$3")"); }

stage() { # name limit command...: the whole output goes to LOGS/name.log, its end to the terminal
    local name=$1 limit=$2 from code
    shift 2
    from=$(date +%s)
    echo "== $name"
    timeout -k 10 "$limit" "$@" >"$logs/$name.log" 2>&1
    code=$?
    tail -n "${TAIL:-15}" "$logs/$name.log"
    case $code in
    0) row "$name" ok "$(($(date +%s) - from)) s" ;;
    124 | 137) row "$name" timeout "$limit s" && failed=1 ;;
    *) row "$name" "exit $code" "$(($(date +%s) - from)) s" && failed=1 ;;
    esac
}

stage machine 60 "$python" - <<'PY'
import importlib.metadata as metadata
import platform

import torch
import triton

print("python", platform.python_version(), "torch", torch.__version__, "triton", triton.__version__)
for name in ("numpy", "fla-core", "tomli", "tomli-w", "pytest", "hypothesis"):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        print(name, "absent")
if torch.cuda.is_available():
    p = torch.cuda.get_device_properties(0)
    print(f"device {p.name}, sm_{p.major}{p.minor}, {p.multi_processor_count} SMs, {p.total_memory >> 30} GiB")
else:
    print("device none: this is a dry run")
PY

# Only files with GPU tests are collected: others may need what is not installed here.
mapfile -t files < <(grep -rlE 'mark\.gpu' tests --include='test_*.py' | sort)
if [ ${#files[@]} -gt 0 ]; then
    stage tests 390 "$python" -m pytest -m gpu -q --tb=short -p no:cacheprovider \
        --junitxml="$logs/tests.xml" "${files[@]}"
else
    row "tests" none "-"
fi

# The demo needs fla-core; where that is absent the tests above show the same on our own kernels.
if "$python" -c 'import fla' 2>/dev/null; then
    TAIL=60 stage demo 80 "$python" scripts/demo.py --no-bisection
else
    row "demo (needs fla-core)" skipped "-"
fi

if [ -f benchmarks/__main__.py ]; then
    TAIL=60 stage benchmarks 120 "$python" -m benchmarks --quick
fi

echo
echo "== $(head -n 1 "$logs/machine.log")"
echo "== $(grep '^device' "$logs/machine.log")"
[ -f "$logs/tests.xml" ] && "$python" - "$logs/tests.xml" <<'PY'
import sys
import xml.etree.ElementTree as tree

for case in tree.parse(sys.argv[1]).iter("testcase"):
    kinds = {child.tag for child in case}
    result = "FAILED" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "ok"
    print(f"{case.get('name', '')[:44]:<44} {result:<8} {float(case.get('time', 0)):>4.1f} s")
PY
printf '%s\n' "${rows[@]}"
echo "$(($(date +%s) - started)) s in all; logs in $1"
exit $failed
