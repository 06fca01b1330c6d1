"""A recipe against its committed standard, by `pinner standards compare` in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Found here, and not through PYTHONPATH: the recipe's own environment stays as it is.
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from pinner.cli import main; sys.exit(main(sys.argv[1:]))"
)


@dataclass(frozen=True)
class Compared:
    """How the comparison ended. exit: as the command's; details: its object of `--json`."""

    exit: int
    text: str
    details: Mapping[str, Any]


def compare(
    name: str,
    command: Sequence[str],
    *,
    standards: Path,
    options: Sequence[str] = (),
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Compared:
    """Runs the recipe once and compares. options: more words for `pinner standards compare`."""
    words = ["standards", "compare", name, "--json", "--standards", str(standards), *options]
    own = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", _START, own, *words, "--", *command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        errors="replace",
    )
    try:
        details = json.loads(done.stdout)
    except ValueError:
        details = {}
    said = [line for line in done.stderr.splitlines() if line.startswith("pinner: ")]
    text = str(details.get("text") or "\n".join(said) or done.stderr)
    if details.get("status") == "command-failed":
        text += "\n" + done.stderr[-2000:]
    return Compared(done.returncode, text, details)
