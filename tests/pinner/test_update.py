"""`pinner update` on real processes: only what is missing or does not hold is tuned again."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path

import pytest

from pinner.lockfile.codec import read_lock, write_lock
from pinner.lockfile.merge import fallbacks_of, merge_ledgers
from pinner.lockfile.prune import without
from pinner.lockfile.schema import Entry, Lock
from pinner.lockfile.update import identities, meant, with_new
from tests import lanes, locks
from tests.command_rig import WORKLOADS, Pinner, python

LOCK = "pinner.lock.toml"
DECIDING = python("deciding.py")
CHOOSING = python("choosing.py")


@pytest.fixture
def pinner(tmp_path: Path) -> Pinner:
    return Pinner(tmp_path)


@pytest.fixture
def draw() -> random.Random:
    seed = random.randrange(2**32)
    print("seed", seed)
    return random.Random(seed)


def lose(pinner: Pinner, gone: list[Entry]) -> Lock:
    """Takes entries out of the lock by hand; its seal stays, as an editor would leave it."""
    lock = read_lock(pinner.path(LOCK))
    left = without(lock, {entry.identity for entry in gone})
    left = replace(left, run=lock.run, evidence=lock.evidence)
    write_lock(pinner.path(LOCK), left)
    return left


def blocks(pinner: Pinner) -> dict[str, object]:
    """The block of each kernel of choosing.py."""
    entries = read_lock(pinner.path(LOCK)).triton
    return {entry.kernel.rpartition(":")[2]: entry.config["BLOCK"] for entry in entries}


@pytest.mark.soak
def test_real_tuners_whose_timings_lie_move_no_kept_entry(
    pinner: Pinner, draw: random.Random
) -> None:
    assert pinner("record", "--", *CHOOSING, PREFERS="16").code == 0
    for _ in range(lanes.fresh_processes() if lanes.soak() else 1):
        entries = list(read_lock(pinner.path(LOCK)).triton)
        lost = draw.choice(entries)
        (kept,) = lose(pinner, [lost]).triton
        prefers = draw.choice([32, 64])
        said = pinner("update", "--json", "--", *CHOOSING, PREFERS=str(prefers))
        assert said.code == 0, said.err
        lock = read_lock(pinner.path(LOCK))
        assert lock.run.sealed
        assert kept in lock.triton
        (new,) = [entry for entry in lock.triton if entry != kept]
        assert (new.kernel, new.config["BLOCK"]) == (lost.kernel, prefers)
        assert (said.json["kept"], said.json["new"], said.json["unmet"]) == (1, 1, [])
        assert [each["kernel"] for each in said.json["diff"]["only_b"]] == [lost.kernel]
    kept_block = blocks(pinner)["total"]

    said = pinner("update", "--", *CHOOSING, PREFERS="32", SOURCE="1")
    assert said.code == 0, said.err
    assert "invalid: __main__:squares" in said.text
    assert "source has changed" in said.text
    assert "source sha256:" in said.text
    assert blocks(pinner) == {"total": kept_block, "squares": 32}

    before = pinner.path(LOCK).read_bytes()
    said = pinner("update", "--", *CHOOSING, PREFERS="64", SOURCE="1")
    assert (said.code, "nothing is missing, and all that was met holds" in said.last) == (0, True)
    assert pinner.path(LOCK).read_bytes() == before


def test_what_cannot_be_sealed_is_not_written(pinner: Pinner, draw: random.Random) -> None:
    sizes = "32,64,128,256"
    assert pinner("record", "--", *DECIDING, SIZES=sizes).code == 0
    entries = list(read_lock(pinner.path(LOCK)).triton)
    gone = draw.sample(entries, draw.randint(1, 3))
    left = lose(pinner, gone)
    before = pinner.path(LOCK).read_bytes()
    environ = {"SIZES": sizes, "TAKES": "64"}
    program = (
        "import sys, os, pinner\n"
        f"sys.path.insert(0, {str(WORKLOADS)!r})\n"
        "import deciding\n"
        "decide = deciding.decide\n"
        "def drifting(size):\n"
        "    block, key = decide(size), {'n': size, 'x:dtype': 'float32'}\n"
        "    if block == 32 and str(size) == os.environ.get('DRIFTS'):\n"
        "        config = {'BLOCK': 32, 'num_warps': 4}\n"
        "        deciding.problem('drift', 'other machine code', config=config, key=key)\n"
        "    return block\n"
        "deciding.decide = drifting\n"
        "deciding.main()\n"
        "if 'NOISE' in os.environ: pinner.fingerprint('out', os.urandom(8))\n"
    )
    noisy = [DECIDING[0], "-c", program]
    said = pinner("update", "--", *noisy, **environ, NOISE="1")
    assert said.code == 1
    assert "two runs under the same choices left different bits" in said.text
    assert "the lock is as it was" in said.text
    assert pinner.path(LOCK).read_bytes() == before
    assert not pinner.path(f"{LOCK}.draft").exists()

    # The kept one that drifts goes the way of those that are missing; the other kept ones stay.
    drifting = left.triton[0]
    said = pinner("update", "--", *noisy, **environ, DRIFTS=str(drifting.key["n"]))
    assert said.code == 0, said.err
    again = {entry.identity for entry in (*gone, drifting)}
    for entry in read_lock(pinner.path(LOCK)).triton:
        assert entry in left.triton if entry.identity not in again else entry.config["BLOCK"] == 64


def test_what_tuning_does_not_mend_is_refused_and_a_draft_only_on_demand(pinner: Pinner) -> None:
    assert pinner("record", "--", *DECIDING, SIZES="64").code == 0
    before = pinner.path(LOCK).read_bytes()
    said = pinner("update", "--", *DECIDING, SIZES="64", FAULT="drift")
    assert said.code == 3
    assert "tuning a key does not mend this; record again" in said.text
    environ = {"SIZES": "64,128", "FAULT": "racy"}
    said = pinner("update", "--draft", "--", *DECIDING, **environ)
    assert said.code == 1
    assert "not deterministic by itself: tests.deciding:kernel config BLOCK=32" in said.text
    draft = read_lock(pinner.path(f"{LOCK}.draft"))
    assert (draft.run.sealed, len(draft.triton)) == (False, 2)
    assert pinner.path(LOCK).read_bytes() == before


class TestWhatIsJoined:
    """Every subset of a lock's entries is lost once; a run tunes all of them otherwise."""

    LOCK = locks.full_lock()

    def test_kept_entries_and_their_fallbacks_stay(self) -> None:
        lines = [
            locks.choice_line(
                kernel=each.kernel,
                source=each.source,
                key=dict(each.key),
                config={**each.config, "num_warps": 8},
                how="tuned",
            )
            for each in self.LOCK.triton
        ]
        entries = self.LOCK.triton
        subsets = chain.from_iterable(combinations(entries, n) for n in range(len(entries) + 1))
        for gone in subsets:
            kept = without(self.LOCK, {entry.identity for entry in gone})
            ledgers = [locks.ledger(*lines)]
            joined = with_new(kept, merge_ledgers(ledgers), identities(ledgers))
            assert len(joined.triton) == len(entries)
            assert set(map(id, kept.triton)) <= set(map(id, joined.triton))
            tuned = [entry for entry in joined.triton if entry.config["num_warps"] == 8]
            assert {entry.identity for entry in tuned} == {entry.identity for entry in gone}
            changed = {entry.kernel for entry in gone}
            anew = {each.kernel: each for each in fallbacks_of(joined.triton)}
            old = {each.kernel: each for each in self.LOCK.fallbacks}
            for fallback in joined.fallbacks:
                side = anew if fallback.kernel in changed else old
                assert fallback == side[fallback.kernel]
            assert (joined.stack.hard, joined.run.sealed) == (self.LOCK.stack.hard, False)

    def test_what_the_lock_decided_by_another_entry_is_no_new_one(self) -> None:
        line = locks.choice_line({"N": 999}, {"BT": 32, "num_warps": 4}, how="shared")
        ledgers = [locks.ledger(line)]
        joined = with_new(self.LOCK, merge_ledgers(ledgers), identities(ledgers))
        assert {each.identity for each in joined.entries} == {
            each.identity for each in self.LOCK.entries
        }

    def test_a_report_means_the_entries_it_names(self) -> None:
        first, *others = self.LOCK.triton
        about = {"chooser": "triton", "kernel": first.kernel}
        of_kernel = {each.identity for each in (first, *others) if each.kernel == first.kernel}
        assert meant(self.LOCK, {**about, "key": first.key}) == {first.identity}
        assert meant(self.LOCK, about) == of_kernel
        assert meant(self.LOCK, {**about, "config": {"BLOCK": 7}}) == of_kernel
        assert meant(self.LOCK, {"chooser": "nccl", "setting": "NCCL_ALGO"}) == set()
