#!/usr/bin/env bash
# Runs the Triton chooser's tests beside each Triton that is supported, in environments of its own.
#
#   scripts/triton_matrix.sh [VERSION…]        3.6.0 and 3.8.0, and 3.4.0 where it can be had
#   MATRIX_CACHE=FOLDER                        where the environments are kept (.cache/triton)
#   MATRIX_TESTS='tests/pinner/test_triton_*.py'
#
# `make test` runs the same tests on the Triton of the development lock. All versions stand beside the
# torch and the other packages of the development environment (.venv, made where it is missing) and
# numpy below 2.4 (Triton 3.6's interpreter breaks on 2.4).
# 3.4.0 is tried as far as it goes: what fails there is printed and does not fail the whole.
set -uo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
cache=${MATRIX_CACHE:-.cache/triton}
tests=${MATRIX_TESTS:-tests/pinner/test_triton_*.py}
jobs=${JOBS:-2}
best_effort=" 3.4.0 "
versions=("$@")
[ ${#versions[@]} -gt 0 ] || versions=(3.6.0 3.8.0 3.4.0)

numpy=2.3.5
"$python" -c 'import sys; sys.exit(sys.version_info >= (3, 11))' && numpy=2.2.6

# All but triton and numpy comes from the development environment, which the folder's own precede.
scripts/dev_env.sh .venv || exit 1
dev=$PWD/.venv

make_environment() { # version folder
    local version=$1 folder=$2 site
    local made="triton $version, numpy $numpy, beside $dev $(cat "$dev/.made-from")"
    [ "$(cat "$folder/.made-from" 2>/dev/null)" = "$made" ] && return 0
    rm -rf "$folder"
    "$dev/bin/python" -m venv "$folder" || return 1
    local pip=("$folder/bin/python" -m pip --disable-pip-version-check --no-input --quiet)
    "${pip[@]}" install --no-deps "numpy==$numpy" "triton==$version" || return 1
    site='import sysconfig; print(sysconfig.get_path("purelib"))'
    # Afterwards: pip would take what lies there for installed.
    "$dev/bin/python" -c "$site" >"$("$folder/bin/python" -c "$site")/development.pth"
    echo "$made" >"$folder/.made-from"
}

failed=0
summary=()
for version in "${versions[@]}"; do
    started=$(date +%s)
    folder=$cache/$version
    mkdir -p "$cache"
    echo "== Triton $version: environment"
    if ! make_environment "$version" "$folder"; then
        result="no environment"
    else
        echo "== Triton $version: tests"
        # shellcheck disable=SC2086 # the tests are a pattern
        if "$folder/bin/python" -m pytest -q -n "$jobs" -p no:cacheprovider $tests; then
            result=passed
        else
            result=failed
        fi
    fi
    summary+=("$(printf '%-8s %-16s %4d s' "$version" "$result" $(($(date +%s) - started)))")
    if [ "$result" != passed ]; then
        case $best_effort in
        *" $version "*) summary[${#summary[@]}-1]+="   (best effort)" ;;
        *) failed=1 ;;
        esac
    fi
done

echo "== Triton matrix"
printf '%s\n' "${summary[@]}"
exit $failed
