"""Four gloo ranks under torchrun that meet, and say in SAID what came of it.

PLANTS names a folder of a distribution that only one rank sees: PLANTS/ATTEMPT-RANK. STUCK: the
rank that meets a pin which cannot be forced, once the ranks have met, and comes to no collective.
EARLY: the rank that meets it before, and ends.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

RANK, WORLD = os.environ.get("RANK", "0"), int(os.environ.get("WORLD_SIZE", "1"))
ATTEMPT = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
sys.path.insert(0, str(Path(os.environ.get("PLANTS", "nowhere")) / f"{ATTEMPT}-{RANK}"))

import torch  # noqa: E402

import pinner  # noqa: E402


def main() -> None:
    pinner.fingerprint("loss", 0.5)
    if WORLD == 1:
        return
    import torch.distributed as dist  # no optimizer, and no end in order: not joined by ranks.py

    said = Path(os.environ["SAID"])
    if os.environ.get("EARLY") == RANK:
        _meet_an_invalid_pin()
        raise SystemExit("a pin cannot be forced")
    try:
        dist.init_process_group("gloo")
    except Exception as error:
        (said / f"{ATTEMPT}-{RANK}").write_text(str(error))
        _until_all_said(said)
        raise
    (said / f"{ATTEMPT}-{RANK}").write_text("")
    if os.environ.get("STUCK") == RANK:
        _meet_an_invalid_pin()
        time.sleep(60)
    dist.all_reduce(torch.ones(1))


def _until_all_said(said: Path) -> None:
    """Torchrun ends the others as soon as one has ended."""
    end = time.monotonic() + 20
    ranks = WORLD - ("EARLY" in os.environ)
    while len(list(said.glob(f"{ATTEMPT}-*"))) < ranks and time.monotonic() < end:
        time.sleep(0.05)


def _meet_an_invalid_pin() -> None:
    from pinner.inside import ledger

    line = {"t": "problem", "kind": "invalid", "chooser": "triton", "kernel": "m:k"}
    ledger.write({**line, "text": "the locked config is not among the live ones"})


main()
