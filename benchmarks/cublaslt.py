"""What a question to cuBLASLt costs when the lock answers it, and when a stand-in does.

The stand-in makes up algorithms and takes the first: how long the real heuristic takes is
not measured here. Reading the 88 words of the key through the library's own functions is most of
what enforcing costs. It needs a C compiler and no GPU.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import pairs
from pinner.inside.choosers.cublaslt import layout, mapped, table
from tests.fakes.cublaslt_stand_in import built, entries

PROBLEMS = 10_000
ROUNDS = 9
ASKED = 20


def main() -> None:
    """Record 10,000 problems in another process, then ask about them here, in three ways."""
    fakes = built()
    with tempfile.TemporaryDirectory() as folder:
        pins = _recorded(fakes, Path(folder))
        _stand_in_front(fakes, os.path.join(folder, "here"), str(pins))
        held = ctypes.CDLL(str(fakes / "libconsumer.so"))
        past = ctypes.CDLL(str(fakes / "libby_handle.so"))
        _ask(held, PROBLEMS, 1)  # each pin is checked once, at its first question
        print(f"one problem asked again and again, {PROBLEMS} questions a round")
        one = {
            "the stand-in answers": partial(_ask, past, 1, PROBLEMS),
            "the lock answers": partial(_ask, held, 1, PROBLEMS),
        }
        pairs.report(pairs.in_turn(one, ROUNDS), PROBLEMS)
        print(f"{PROBLEMS} problems in turn, {ASKED} questions each")
        all_of_them = {
            "the stand-in answers": partial(_ask, past, PROBLEMS, ASKED),
            "the lock answers": partial(_ask, held, PROBLEMS, ASKED),
        }
        times = pairs.in_turn(all_of_them, ROUNDS)
        pairs.report(times, PROBLEMS * ASKED)
        fastest = min(times["the lock answers"])
        print(f"  {PROBLEMS * ASKED / fastest / 1e6:.2f} million questions a second")


def _ask(library: Any, problems: int, count: int) -> None:
    if library.consumer_ask(problems, count):
        raise SystemExit("a question was not answered")


def _recorded(fakes: Path, folder: Path) -> Path:
    """Record the problems in a process of its own, and return the pins made of them."""
    command = [sys.executable, "-m", "benchmarks.cublaslt", "record", str(fakes), str(folder / "r")]
    subprocess.run(command, check=True)
    (path,) = folder.glob("r-*.map")
    choices = [line for line in mapped.lines(str(path)) if line["t"] == "choice"]
    if len(choices) != PROBLEMS:
        raise SystemExit(f"expected {PROBLEMS} choices, found {len(choices)}")
    table.write(str(folder / table.FILE), entries(choices))
    return folder / table.FILE


def _record(fakes: Path, prefix: str) -> None:
    _stand_in_front(fakes, prefix, None)
    _ask(ctypes.CDLL(str(fakes / "libconsumer.so")), PROBLEMS, 1)


def _stand_in_front(fakes: Path, prefix: str, pins: str | None) -> None:
    library = ctypes.CDLL(str(fakes / "interpose.so"), mode=os.RTLD_GLOBAL)
    settings = layout.Settings(
        layout=layout.digest(),
        enforcing=pins is not None,
        capacity=4 * PROBLEMS,
        prefix=os.fsencode(prefix),
        process=b'{"t":"process"}',
    )
    given = None if pins is None else os.fsencode(pins)
    if library.pinner_cublaslt_start(ctypes.byref(settings), given):
        raise SystemExit("the library does not start")


if __name__ == "__main__":
    if sys.argv[1:2] == ["record"]:
        _record(Path(sys.argv[2]), sys.argv[3])
    else:
        main()
