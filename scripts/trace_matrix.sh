#!/usr/bin/env bash
# Runs the tests of traces beside other torch versions, in environments that are there already.
#
#   scripts/trace_matrix.sh PYTHON [PYTHON…]   interpreters that have torch (2.4 or newer), pytest,
#                                              numpy, tomli and tomli-w; nothing is installed
#   MATRIX_TESTS='tests/pinner/test_trace_*.py'
#
# What an older torch lacks is printed as a failed or skipped test; a table by version comes last.
# Exit code: 0 all passed, 1 something failed, 64 usage.
set -uo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || {
    sed -n '2,9p' "$0" | sed 's/^# \{0,1\}//' >&2
    exit 64
}
tests=${MATRIX_TESTS:-tests/pinner/test_trace_*.py}
failed=0
rows=()
for python in "$@"; do
    versions=$("$python" -c '
import platform, torch
print("torch", torch.__version__, "python", platform.python_version())') || {
        rows+=("$python: has no torch that can be imported")
        failed=1
        continue
    }
    echo "== $versions"
    started=$(date +%s)
    # shellcheck disable=SC2086 # the tests are a pattern
    "$python" -m pytest -q -p no:cacheprovider -o addopts=--import-mode=importlib $tests | tee /dev/stderr | tail -n 1 >/tmp/trace_matrix.$$
    [ "${PIPESTATUS[0]}" = 0 ] || failed=1
    rows+=("$versions: $(cat /tmp/trace_matrix.$$), $(($(date +%s) - started)) s")
    rm -f /tmp/trace_matrix.$$
done

echo "== traces by torch version"
printf '%s\n' "${rows[@]}"
exit $failed
