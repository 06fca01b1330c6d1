"""A run without torch that saves its state and goes on from it; starts in a moment.

The folder is the first argument. Each step draws from Python's random stream.

RESTORES=all|state|nothing|other   what it goes back to: all of it (default), all but the random
           state, nothing at all, or another number than was saved
STEPS=N, EVERY=N   steps in all (default 6), and how often it saves (default 2)
SAVERS=0,1  which ranks save (default: all). NUMBERED=1: fingerprints with step numbers of its own
RANKS=N    starts itself as N ranks, each in the same folder
HANGS=R    a rank that waits for ever in the run that is to be killed
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pinner

RANK = int(os.environ.get("RANK", "0"))
RESTORES = os.environ.get("RESTORES", "all")
SAVERS = os.environ.get("SAVERS", str(RANK)).split(",")


def ranks(number: int) -> int:
    """Starts the ranks and waits for them."""
    environ = {name: value for name, value in os.environ.items() if name != "RANKS"}
    if any(Path(sys.argv[1]).glob("state-*.json")):
        environ.pop("HANGS", None)  # asked here: a rank that starts late finds the others' files
    started = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={**environ, "RANK": str(rank), "WORLD_SIZE": str(number)},
            start_new_session=True,  # as torchrun does
        )
        for rank in range(number)
    ]
    return max(process.wait() for process in started)


def main(folder: Path) -> None:
    """Runs to the end, from where it is."""
    file, log = folder / f"state-{RANK}.json", folder / f"steps-{RANK}.txt"
    random.seed(RANK)
    step, value = 0, 1.0
    if file.exists() and RESTORES != "nothing":
        saved = json.loads(file.read_text())
        step, value = saved["step"], saved["value"]
        if RESTORES == "other":
            value += 1.0
        if RESTORES != "state":
            version, numbers, gauss = saved["random"]
            random.setstate((version, tuple(numbers), gauss))
        pinner.checkpoint_restored({"step": step, "value": value}, str(file))
    while step < int(os.environ.get("STEPS", "6")):
        value += random.random()
        step += 1
        with log.open("a") as out:
            out.write(f"{step}\n")
        pinner.fingerprint("value", value, step if "NUMBERED" in os.environ else None)
        if os.environ.get("HANGS") == str(RANK) and folder.name == "killed":
            time.sleep(600)
        if step % int(os.environ.get("EVERY", "2")) == 0 and str(RANK) in SAVERS:
            state = {"step": step, "value": value}
            file.write_text(json.dumps({**state, "random": random.getstate()}))
            pinner.checkpoint_saved(state, str(file))


if __name__ == "__main__":
    if "RANKS" in os.environ:
        sys.exit(ranks(int(os.environ["RANKS"])))
    main(Path(sys.argv[1]))
