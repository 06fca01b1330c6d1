#!/usr/bin/env bash
# Installs and starts what the tests need: Docker, Podman, two image registries, debootstrap, Slurm.
#
#   scripts/services.sh [start|stop|status]
#
# Data live in the folder STACKBISECT_SERVICES names, else in one of this user's below the temporary
# folder. A Docker daemon that already answers is used as it is and never stopped. Installing needs
# root and Debian or Ubuntu; starting a Docker daemon needs root. Run it again as often as you like.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"

missing() {
    command -v dockerd >/dev/null || echo docker.io
    command -v docker-registry >/dev/null || echo docker-registry
    command -v debootstrap >/dev/null || echo debootstrap
    command -v ip >/dev/null || echo iproute2
    command -v podman >/dev/null || echo podman runc
    command -v munged >/dev/null || echo munge
    command -v slurmctld >/dev/null || echo slurmctld
    command -v slurmd >/dev/null || echo slurmd
    command -v sbatch >/dev/null || echo slurm-client
}

install() {
    local packages
    packages=$(missing)
    [ -z "$packages" ] && return
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "services: expected these Debian packages, and root to install them:" $packages >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q >&2
    # shellcheck disable=SC2086 # one word a package
    apt-get install -q -y --no-install-recommends $packages iptables ca-certificates >&2
}

[ "${1:-start}" = start ] && install
exec "${PYTHON:-python3}" tests/stackbisect/services.py "${1:-start}"
