#!/bin/sh
# Records which config is picked, then forces it while others are timed fastest: each of the four in
# turn, or those whose numbers are given.
# Ends with 0 when all of these runs left the bits that the lock was sealed with.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

pinner record -o "$folder/lock.toml" --evidence-stdout 'digest (.*)' -- python repro.py
for fastest in ${*:-0 1 2 3}; do
    echo "the config that is timed fastest: $fastest"
    FASTEST=$fastest pinner enforce -l "$folder/lock.toml" --verify -- python repro.py
done
