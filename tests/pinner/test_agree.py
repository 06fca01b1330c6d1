"""Ranks agree on lock, pins, profile and facts before they work together, or all end alike."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import socket
import stat
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from pinner.inside import agree, ledger
from tests.command_rig import Pinner, python


@pytest.fixture
def at_the_end(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What this process would do at its end; and nothing follows its ledger afterwards."""
    due: list[Callable[[], object]] = []
    monkeypatch.setattr(ledger, "at_exit", due.append)
    monkeypatch.setattr(ledger, "_followers", [])
    return due


class Store:
    """What `exchange` asks of torch's stores; the runs under torchrun hold it to the real one."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        self.wait([key], timedelta(seconds=5))
        return self._values[key]

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], limit: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.check(keys), limit.total_seconds()):
                raise RuntimeError(f"wait timeout, keys: {keys}")

    def delete_key(self, key: str) -> bool:
        with self._changed:
            return self._values.pop(key, None) is not None


SAME = {"lock": "sha256:a", "pins": "sha256:b", "profile": "sha256:c", "fact torch": "2.13.0"}


def met(
    ranks: Mapping[int, Mapping[str, str]],
    world: int,
    seconds: float = 20,
    store: Store | None = None,
) -> dict[int, str | None]:
    """What each rank is told that is there; they are in one gathering."""
    store = store or Store()
    with ThreadPoolExecutor(len(ranks)) as pool:
        each = {
            rank: pool.submit(agree.exchange, store, rank, world, seconds, fields)
            for rank, fields in ranks.items()
        }
        found = {rank: future.result() for rank, future in each.items()}
    assert len({name for _, name in found.values()}) == 1
    return {rank: text for rank, (text, _) in found.items()}


class TestTheExchange:
    def test_ranks_that_have_the_same_go_on(self) -> None:
        assert set(met(dict.fromkeys(range(5), SAME), 5).values()) == {None}

    def test_whoever_differs_in_whatever_all_are_told_who_what_and_both_values(self) -> None:
        """Every rank of every small world, every field."""
        for world in (3, 4, 5):
            for odd, name in itertools.product(range(world), SAME):
                ranks = {rank: dict(SAME) for rank in range(world)}
                ranks[odd][name] = "another"
                told = met(ranks, world)
                (text,) = set(told.values())
                assert text is not None
                assert f"{name}: another on rank {odd}, {SAME[name]} on ranks " in text

    def test_of_two_that_differ_both_are_told(self) -> None:
        (text,) = set(met({0: SAME, 1: {**SAME, "lock": "sha256:z"}}, 2).values())
        assert text is not None
        assert "lock: sha256:z on rank 1, sha256:a on rank 0;" in text

    def test_ranks_that_never_come_are_named_to_all_that_did(self) -> None:
        told = met({0: SAME, 3: SAME}, 5, seconds=0.5)
        (text,) = set(told.values())
        assert text is not None
        assert text.startswith("ranks 1-2, 4 did not say within 0.5 s what lock and stack")

    def test_without_rank_0_there_is_no_verdict_and_no_hanging(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(agree, "GRACE_S", 0.1)
        told = met({1: SAME, 2: SAME}, 3, seconds=0.1)
        assert all(text and text.startswith("rank 0 gave no verdict") for text in told.values())

    def test_what_an_earlier_gathering_left_in_the_store_is_nobodys_verdict(self) -> None:
        """Torchrun may hand the same store to ranks that it starts again."""
        store = Store()
        (text,) = set(met({0: SAME, 1: {**SAME, "lock": "z"}}, 2, store=store).values())
        assert text is not None
        assert set(met(dict.fromkeys(range(2), SAME), 2, store=store).values()) == {None}
        (text,) = set(met({0: SAME, 1: {**SAME, "lock": "z"}}, 2, store=store).values())
        assert text is not None

    def test_a_program_that_tries_again_is_refused_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The others are gone: a second exchange would end as a rank that never came."""
        monkeypatch.setattr(agree, "_exchanged_by", None)
        monkeypatch.setattr(agree, "_refused", None)
        monkeypatch.setattr(agree, "exchange", lambda *given: ("they differ", ""))
        module = types.SimpleNamespace(PrefixStore=lambda prefix, store: store)
        for _ in range(2):
            with pytest.raises(agree.Disagreement, match="they differ"):
                agree._once(module, Store(), 1, 2, 1.0)  # type: ignore[arg-type]

    def test_why_a_rank_refuses_is_told_where_no_field_tells_it(self) -> None:
        (text,) = set(met({0: SAME, 1: {**SAME, "refused": "no disk"}, 2: SAME}, 3).values())
        assert text is not None
        assert "refused: no disk on rank 1, not there on ranks 0, 2;" in text

    def test_where_all_refuse_for_one_cause_it_is_the_error(self) -> None:
        ranks = {rank: {**SAME, "refused": "another stack"} for rank in range(3)}
        assert set(met(ranks, 3).values()) == {"another stack"}

    def test_a_library_that_only_some_have_loaded_is_no_difference(self) -> None:
        loaded = {**SAME, "fact loaded:libgomp": "1"}
        assert set(met({0: SAME, 1: loaded, 2: SAME}, 3).values()) == {None}
        other = {**SAME, "fact loaded:libgomp": "2"}
        (text,) = set(met({0: loaded, 1: other}, 2).values())
        assert text is not None

    def test_a_torn_lock_is_one_difference(self) -> None:
        torn = {"lock": "the pins file p is torn", "fact torch": "2.13.0", "refused": "torn"}
        (text,) = set(met({0: SAME, 1: SAME, 2: torn}, 3).values())
        assert text is not None
        assert "lock: the pins file p is torn on rank 2, sha256:a on ranks 0-1;" in text
        assert "pins:" not in text

    def test_thousands_of_ranks_are_compared_by_their_digests(self) -> None:
        seed = random.randrange(2**32)
        print("seed", seed)
        odd = random.Random(seed).randrange(5000)
        digests = {rank: "x" if rank == odd else "y" for rank in range(5000)}
        every = {"x": {**SAME, "fact gpu": "H100"}, "y": {**SAME, "fact gpu": "H200"}}
        text = agree.compared(digests, every)
        assert text is not None
        assert f"fact gpu: H100 on rank {odd}, H200 on ranks " in text
        assert agree.compared(dict.fromkeys(range(5000), "y"), every) is None


INVALID = {"t": "problem", "kind": "invalid", "text": "no such config"}


def test_the_rank_that_holds_the_store_stays_until_the_others_have_heard(
    monkeypatch: pytest.MonkeyPatch, at_the_end: list[Callable[[], object]]
) -> None:
    monkeypatch.setattr(agree, "LOOK_S", 0.001)
    slept: list[float] = []
    for rank, stays in ((1, []), (0, [2 * agree.LOOK_S])):
        store = Store()
        agree._look_from_now_on(store, rank, "met")
        ledger._followers.pop()(INVALID)
        assert json.loads(store.get("invalid/met"))["rank"] == rank
        with monkeypatch.context() as patch:
            patch.setattr(agree.time, "sleep", slept.append)
            at_the_end.pop()()
        assert slept == stays


def test_a_python_that_starts_no_thread_at_its_end_goes_to_no_exchange_without_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python 3.12.0 and 3.12.1: "can't create new thread at interpreter shutdown"."""
    came: list[str] = []

    def no_thread(seconds: float) -> None:
        came.append("limit")
        raise RuntimeError("can't create new thread at interpreter shutdown")

    module = types.SimpleNamespace(rendezvous=came.append)
    active = types.SimpleNamespace(agree=1.0)
    monkeypatch.setitem(sys.modules, agree._MODULE, module)
    monkeypatch.setattr(agree.session, "current", lambda: active)
    monkeypatch.setattr(agree, "may_wait", lambda: True)
    monkeypatch.setattr(agree, "_is_child", lambda: False)
    monkeypatch.setattr(agree, "_limit", no_thread)
    monkeypatch.setattr(agree, "_invalid", "no such config")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    agree._tell_at_the_end()
    assert came == ["limit"]


ONE = {"OMP_NUM_THREADS": "1"}  # as torchrun sets it for its ranks
ALONE = ["--allow-draft", "--agree", "1", "--expect", "1", "--", sys.executable, "-c"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The draft of one observed process."""
    pinner = Pinner(tmp_path_factory.mktemp("recorded"))
    observe = ("record", "--phase", "observe", "--dir", "shared", "--", *python("agreeing.py"))
    said = pinner(*observe, **ONE)
    assert said.code == 0, said.err
    assert pinner("merge", "shared/observe", "-o", "pinner.lock.toml").code == 0
    return pinner.path("pinner.lock.toml")


# Attempt 0: rank 1 is killed before it begins. 1: rank 2 sees another numpy, rank 3 has torn pins,
# rank 1 meets a pin that cannot be forced and ends before it meets the others.
# 2: healthy, until rank 1 meets a pin that cannot be forced while the others reduce.
WRAPPER = """#!/bin/sh
case $TORCHELASTIC_RESTART_COUNT-$RANK in
0-1) kill -9 $$ ;;
1-1) EARLY=1 "$@"; code=$?; sleep 3; exit $code ;;
1-3) export EARLY=1 PINNER_SESSION=$TORN ;;
1-*) export EARLY=1 ;;
2-*) export STUCK=1 ;;
esac
exec "$@"
"""


def test_under_torchrun_ranks_end_alike_in_each_attempt_and_meet_when_they_are_whole(
    recorded: Path, tmp_path: Path
) -> None:
    """One job of torchrun with two restarts: the lock stays, the ledgers do not collide."""
    pinner = Pinner(tmp_path)
    shutil.copy(recorded, tmp_path)
    one = {**ONE, "PLANTS": str(tmp_path / "plants")}
    lock = (tmp_path / "pinner.lock.toml").read_bytes()
    wrapper = tmp_path / "start.sh"
    wrapper.write_text(WRAPPER)
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    planted = tmp_path / "plants" / "1-2" / "numpy-0.9.dist-info"
    planted.mkdir(parents=True)
    (planted / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.9\n")
    (tmp_path / "said").mkdir()
    watcher = threading.Thread(target=_tear_a_copy, args=(tmp_path,))
    watcher.start()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    words = ["--nproc-per-node=4", "--max-restarts=2", str(wrapper), *python("agreeing.py")]
    asked = ["--allow-draft", "--agree", "90", "--dir", "run", "--"]
    more = {**one, "SAID": str(tmp_path / "said"), "TORN": str(tmp_path / "torn")}
    found = pinner("enforce", *asked, *torchrun, *words, timeout=300, **more)
    watcher.join()

    said = {path.name: path.read_text() for path in (tmp_path / "said").iterdir()}
    assert {name for name in said if name.startswith("0")} <= {"0-0", "0-2", "0-3"}
    (error,) = {said[f"1-{rank}"] for rank in (0, 2, 3)}
    assert "fact numpy: 0.9 on rank 2, " in error
    assert "invalid pin: the locked config is not among the live ones on rank 1, not there" in error
    assert "lock: the pins file " in error
    assert "pins.json is torn: " in error
    assert " on rank 3, sha256:" in error
    assert " on ranks 0-2; " in error
    assert {said[f"2-{rank}"] for rank in range(4)} == {""}
    assert "rank 1 cannot force a pin, so every rank stops: the locked config" in found.err
    assert found.code == 96  # ranks refused in attempts before; torchrun itself ended with 1
    assert error in found.err
    assert (
        "the lock was validated with 1 rank on 1 host, this run has 4 ranks on 1 host" in found.err
    )

    assert (tmp_path / "pinner.lock.toml").read_bytes() == lock
    firsts = [json.loads(path.read_text().splitlines()[0]) for path in _ledgers(tmp_path)]
    ranks = sorted(first["rank"] for first in firsts if first["rank"] is not None)
    assert len(set(ranks)) == 4
    assert ranks.count(0) >= 2
    agreed = [path for path in _ledgers(tmp_path) if '"chooser":"agree"' in path.read_text()]
    assert len(agreed) == 4
    names = [(first["pid"], first["time"]) for first in firsts]
    assert len(set(names)) == len(names)


def _ledgers(folder: Path) -> list[Path]:
    return sorted((folder / "run" / "enforce" / "ledger").glob("*.jsonl"))


def _tear_a_copy(folder: Path) -> None:
    """The run's folder, with pins that end in the middle, for the rank that is given it."""
    session = folder / "run" / "enforce"
    while not (session / "session.json").exists():
        threading.Event().wait(0.05)
    torn = folder / "torn"
    torn.mkdir()
    for name in ("ledger", "faults", "launchers", "cublaslt"):
        os.symlink(session / name, torn / name)
    fields = json.loads((session / "session.json").read_text())
    pins = torn / "pins.json"
    shutil.copy(session / "pins.json", pins)
    pins.write_bytes(pins.read_bytes()[: pins.stat().st_size // 2])
    (torn / "session.json").write_text(json.dumps({**fields, "pins": str(pins)}))


def test_a_rank_whose_job_never_gathers_ends_within_the_limit(recorded: Path) -> None:
    """Alone in a world of two, with nobody to end it: torch would wait for half an hour."""
    code = (
        "from pinner.inside import agree; agree.GRACE_S = 0.1; import torch.distributed as d;"
        "d.init_process_group('gloo')"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    alone = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    found = Pinner(recorded.parent)("enforce", *ALONE, code, timeout=100, **alone, **ONE)
    assert found.code == 96, found.err
    assert "rank 0 of 2: init_process_group did not come back within 1 s" in found.err


def test_where_ranks_never_meet_it_is_said_that_nothing_was_exchanged(recorded: Path) -> None:
    code = "from pinner.inside import ledger; ledger.open_now()"
    alone = {"RANK": "0", "WORLD_SIZE": "2"}
    found = Pinner(recorded.parent)("enforce", *ALONE, code, timeout=100, **alone, **ONE)
    assert found.code == 97, found.err
    assert "--agree: nothing was exchanged in a world of 2" in found.err


@pytest.mark.parametrize(
    "then",
    [
        "ledger.write({'t': 'choice'}); print('decided', flush=True)",
        "pass",
        "import time; time.sleep(60); print('decided', flush=True)",
    ],
    ids=["at a choice", "at its end", "at the limit"],
)
def test_a_rank_that_waits_to_say_why_it_refuses_decides_nothing_meanwhile(
    recorded: Path, then: str
) -> None:
    code = (
        "from pinner.inside import agree, ledger; agree.GRACE_S = 0.2; assert agree.may_wait();"
        f"agree.wait_with('the pins are torn'); {then}"
    )
    alone = {"RANK": "0", "WORLD_SIZE": "2"}
    found = Pinner(recorded.parent)("enforce", *ALONE, code, timeout=50, **alone, **ONE)
    assert (found.code, found.out) == (96, ""), found.err
    assert "pinner: the pins are torn" in found.err


def test_without_a_rank_nobody_waits(recorded: Path) -> None:
    """Torchrun's agent, or a helper: nobody would hear what it has to say."""
    code = "from pinner.inside import agree, ledger; ledger.open_now(); assert not agree.may_wait()"
    found = Pinner(recorded.parent)("enforce", *ALONE, code, timeout=50, **ONE)
    assert found.code == 0, found.err
