"""The script that Slurm runs for one command: pure, values in, text out.

It needs bash, coreutils and the file system that the bisection's folder is on. Each start of a job
works in a folder of its own (`start.0`, after a requeue `start.1`), copied from `template`: what an
earlier start left, or still writes on a node that Slurm has given up, never counts.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

TEMPLATE, START = "template", "start."
# Files in a start's folder: written when it begins; the command's code; that its time was over.
BEGAN, ENDED, LATE = "began", "ended", "late"
STDOUT, LOG, HOST = "stdout", "log", "host.json"
# How long a command that was asked to end may take before it is killed.
_GRACE_S = 10

_TEXT = r"""#!/bin/bash
# One command of a bisection, written by stackbisect.
place={place}
start="$place/{start}${{SLURM_RESTART_COUNT:-0}}"
say() {{
    printf '%s\n' "$2" >"$start/$1.new" && sync "$start/$1.new" && mv "$start/$1.new" "$start/$1"
}}
rm -rf "$start"
cp -r "$place/{template}" "$start" || exit 1
mkfifo "$start/fifo" || exit 1
say {began} "$(date +%s) $SLURM_JOB_ID $SLURM_JOB_NODELIST"
for python in {python} python3; do
    "$python" -I -S "$place/host.py" >"$start/{host}" 2>/dev/null && break
done
{exports}
cd {workdir} || {{ say {ended} 127; exit 127; }}

set -m # each of these in a process group of its own
tee "$start/{stdout}" <"$start/fifo" >>"$start/{log}" &
copying=$!
{command} >"$start/fifo" 2>>"$start/{log}" </dev/null &
command=$!
{watch}
wait "$command"
code=$?
{unwatch}
# What the command left running may hold its output open.
for _ in {{1..30}}; do kill -0 "$copying" 2>/dev/null || break; sleep 0.1; done
kill -KILL -- "-$command" "-$copying" 2>/dev/null
wait "$copying" 2>/dev/null
rm -f "$start/fifo"
sync "$start/{stdout}" "$start/{log}"
say {ended} "$code"
exit "$code"
"""

_WATCH = """(
    sleep {limit}
    say {late} {limit}
    kill -TERM -- "-$command"
    sleep {grace}
    kill -KILL -- "-$command"
) >/dev/null 2>&1 &
watching=$!"""
_UNWATCH = 'kill -KILL -- "-$watching" 2>/dev/null'


def text(
    *,
    place: Path,
    command: Sequence[str],
    workdir: Path,
    exports: Mapping[str, str],
    own: Mapping[str, str],
    python: str,
    time_limit: float | None,
) -> str:
    """The script. `own` maps paths in the exports to the folders that replace them in a start."""
    lines = [f"export {name}={_value(value, own)}" for name, value in sorted(exports.items())]
    fields = {"limit": f"{time_limit or 0:g}", "late": LATE, "grace": _GRACE_S}
    return _TEXT.format(
        place=shlex.quote(str(place)),
        start=START,
        template=TEMPLATE,
        began=BEGAN,
        ended=ENDED,
        stdout=STDOUT,
        log=LOG,
        host=HOST,
        python=shlex.quote(python),
        exports="\n".join(lines),
        workdir=shlex.quote(str(workdir)),
        command=shlex.join(command),
        watch="" if time_limit is None else _WATCH.format(**fields),
        unwatch="" if time_limit is None else _UNWATCH,
    )


def _value(value: str, own: Mapping[str, str]) -> str:
    """A value for bash; a path of a folder of its own leads into the start's folder."""
    for path, name in own.items():
        if value == path or value.startswith(path + "/"):
            return f'"$start"/{shlex.quote(name + value[len(path) :])}'
    return shlex.quote(value)
