#!/usr/bin/env bash
# Runs the Inductor chooser's tests under other versions of torch, in environments that are given.
#
#   scripts/inductor_matrix.sh PYTHON…         interpreters with torch, its Triton, pytest, xdist
#   MATRIX_TESTS='tests/pinner/test_inductor_*.py'
#
# Nothing is installed: builds of torch for the CPU come from an index of their own, which not every
# machine can reach, and the builds for CUDA are of several gigabytes. A C++ compiler is needed.
set -uo pipefail
cd "$(dirname "$0")/.."

tests=${MATRIX_TESTS:-tests/pinner/test_inductor_*.py}
jobs=${JOBS:-2}
if [ $# -eq 0 ]; then
    sed -n '2,5p' "$0" >&2
    exit 64
fi

failed=0
summary=()
for python in "$@"; do
    started=$(date +%s)
    version=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null)
    if [ -z "$version" ]; then
        result="no torch"
    else
        echo "== torch $version: tests"
        # shellcheck disable=SC2086 # the tests are a pattern
        if "$python" -m pytest -q -n "$jobs" --dist loadgroup -p no:cacheprovider $tests; then
            result=passed
        else
            result=failed
        fi
    fi
    [ "$result" = passed ] || failed=1
    summary+=("$(printf '%-14s %-10s %4d s' "${version:-$python}" "$result" $(($(date +%s) - started)))")
done

echo "== Inductor matrix"
printf '%s\n' "${summary[@]}"
exit $failed
