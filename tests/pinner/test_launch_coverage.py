"""What became of each locked choice, counted from ledgers; and who had to take part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pinner.launch import participation
from pinner.launch.coverage import FIELDS, cover
from pinner.lockfile.ledgers import ProcessLedger, ProcessRecord, ledger_of
from pinner.lockfile.schema import Entry, Lock, Run, Setting

SOURCE = "sha256:aa"


def entry(n: Any, block: int = 32, kernel: str = "m:k") -> Entry:
    return Entry("triton", kernel, SOURCE, {"n": n}, {"BLOCK": block}, alternatives=3)


def lock(*entries: Entry) -> Lock:
    return Lock(Run(("x",), "now", "0"), triton=entries)


def choice(n: Any, how: str, block: int = 32, **more: Any) -> dict[str, Any]:
    line = {"t": "choice", "chooser": "triton", "kernel": "m:k", "source": SOURCE, "key": {"n": n}}
    return {**line, "config": {"BLOCK": block}, "alternatives": 3, "how": how, **more}


def problem(kind: str, text: str = "why", **more: Any) -> dict[str, Any]:
    line = {"t": "problem", "kind": kind, "chooser": "triton", "kernel": "m:k", "text": text}
    return {**line, **more}


def process(*lines: dict[str, Any], rank: int | None = 0, pid: int = 1) -> ProcessLedger:
    header = {"t": "process", "pid": pid, "host": "h", "rank": rank, "world": 2, "argv": ["x"]}
    found = ledger_of([header, *lines])
    assert found is not None
    return found


def counts(made: Lock, *ledgers: ProcessLedger) -> dict[str, int]:
    found = cover(made, ledgers)
    return {name: found.count(name) for name in FIELDS if found.count(name)}


def test_every_locked_entry_is_used_cached_or_unused() -> None:
    ledger = process(choice(1, "forced"), choice(2, "disk"))
    found = counts(lock(entry(1), entry(2), entry(3)), ledger)
    assert found == {"locked": 3, "used": 1, "cached": 1, "unused": 1}


def test_one_config_that_is_left_of_a_list_uses_all_entries_that_lock_it() -> None:
    made = lock(entry(1), entry(2), entry(3, block=64), entry(1, kernel="m:other"))
    left = {**choice(0, "forced"), "key": {}, "alternatives": 1}
    assert counts(made, process(left)) == {"locked": 4, "used": 2, "unused": 2}
    for other in ({"alternatives": 2}, {"how": "only"}, {"source": "sha256:bb"}):
        assert counts(made, process({**left, **other})) == {"locked": 4, "unused": 4}


def test_ranks_that_use_one_entry_are_one_use_with_two_names() -> None:
    ledgers = [process(choice(1, "forced"), rank=rank, pid=rank) for rank in range(2)]
    found = cover(lock(entry(1)), ledgers)
    assert found.count("used") == 1
    assert found.entries["used"][0]["processes"] == ["rank 0", "rank 1"]


def test_one_rank_that_had_it_forced_makes_it_used_though_another_had_it_cached() -> None:
    ledgers = [process(choice(1, "disk")), process(choice(1, "forced"), rank=1)]
    assert counts(lock(entry(1)), *ledgers) == {"locked": 1, "used": 1}


def test_true_and_one_are_two_keys() -> None:
    assert counts(lock(entry(1)), process(choice(True, "forced"))) == {"locked": 1, "unused": 1}


def test_a_key_that_shares_the_entry_of_its_twin_uses_it() -> None:
    """`shared`: Triton's own key names no argument, so the entry of one of them decides both."""
    locked = Entry("triton", "m:k", SOURCE, {"x:dtype": "a", "y:dtype": "b"}, {"BLOCK": 32}, 3)
    twin = {**choice(0, "shared"), "key": {"x:dtype": "b", "y:dtype": "a"}}
    assert counts(lock(locked), process(twin)) == {"locked": 1, "used": 1}
    assert counts(lock(locked), process({**twin, "how": "forced"})) == {"locked": 1, "unused": 1}


def test_fallbacks_and_misses_are_counted_by_key() -> None:
    ledger = process(
        choice(7, "fallback"), choice(7, "fallback", 64), choice(8, "missed"), choice(9, "only")
    )
    assert counts(lock(), ledger) == {"fallback": 1, "missed": 1}


def test_a_miss_that_was_an_error_is_a_miss() -> None:
    assert counts(lock(), process(problem("missed", key={"n": 5}))) == {"missed": 1}


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("invalid", "invalid"),
        ("elsewhere", "unenforceable"),
        ("refused", "unenforceable"),
        ("bypass", "unenforceable"),
        ("drift", "drifted"),
    ],
)
def test_problems_have_their_fields(kind: str, field: str) -> None:
    ledgers = [process(problem(kind)), process(problem(kind), rank=1)]
    assert counts(lock(), *ledgers) == {field: 1}


def test_an_invalid_entry_keeps_candidates_and_the_nearest() -> None:
    line = problem("invalid", candidates=[{"BLOCK": 16}], nearest={"BLOCK": 16})
    (found,) = cover(lock(), [process(line)]).entries["invalid"]
    assert (found["candidates"], found["nearest"]) == ([{"BLOCK": 16}], {"BLOCK": 16})


def test_notes_are_told_once() -> None:
    line = choice(1, "forced", notes=["the candidate set grew from 3 to 4; still pinned"])
    found = cover(lock(entry(1)), [process(line), process(line, problem("note", "x"), rank=1)])
    assert found.notes == ("m:k: the candidate set grew from 3 to 4; still pinned", "m:k: x")


def test_what_breaks_the_promise() -> None:
    drifted = cover(lock(), [process(problem("drift"), problem("missed", key={"n": 1}))])
    assert drifted.broken("fallback") == ()
    assert drifted.broken("error") == ("missed", "drifted")
    assert cover(lock(), [process(problem("invalid"))]).broken("fallback") == ("invalid",)


def test_the_report_has_the_counts_and_what_is_behind_them() -> None:
    report = cover(lock(entry(1)), [process(choice(1, "forced"))]).report()
    assert [name for name in report if name not in ("entries", "settings")] == list(FIELDS)
    assert {name: len(report["entries"][name]) for name in FIELDS} == {
        name: report[name] for name in FIELDS
    }


# ---- the other choosers --------------------------------------------------------------------

OPERATION = {"chooser": "inductor", "kernel": "gemm:mm", "source": ""}


def operation(n: Any, block: int = 32) -> Entry:
    return Entry("inductor", "gemm:mm", "", {"n": n}, {"BLOCK": block}, alternatives=3)


def locked(*operations: Entry, **parts: Any) -> Lock:
    return replace(lock(), inductor=operations, **parts)


def test_choices_of_all_choosers_are_counted_together() -> None:
    made = replace(lock(entry(1)), inductor=(operation(1), operation(2)))
    ledger = process(
        choice(1, "forced"), choice(1, "forced", **OPERATION), choice(2, "cached", **OPERATION)
    )
    found = cover(made, [ledger])
    assert counts(made, ledger) == {"locked": 3, "used": 2, "cached": 1}
    assert [each["chooser"] for each in found.entries["used"]] == ["triton", "inductor"]
    assert found.closing()[1:] == ("triton: 1 of 1 used", "inductor: 1 of 2 used, 1 cached")


def test_a_run_of_triton_alone_is_closed_by_one_line() -> None:
    assert len(cover(lock(entry(1)), [process(choice(1, "forced"))]).closing()) == 1


def test_a_heuristic_that_answers_as_locked_is_used() -> None:
    made = locked(operation(1))
    assert counts(made, process(choice(1, "heuristic", **OPERATION))) == {"locked": 1, "used": 1}


@pytest.mark.parametrize("how", ["heuristic", "cached"])
def test_what_decides_otherwise_than_the_lock_is_invalid(how: str) -> None:
    found = cover(locked(operation(1)), [process(choice(1, how, 64, **OPERATION))])
    (broken,) = found.entries["invalid"]
    assert "decided (BLOCK=64), the lock holds (BLOCK=32)" in broken["text"]
    assert (found.count("used"), found.count("cached"), found.count("unused")) == (0, 0, 1)
    assert found.broken("fallback") == ("invalid",)


def test_a_break_that_the_chooser_named_itself_is_counted_once() -> None:
    told = problem("bypass", key={"n": 1}, **{**OPERATION, "source": ""})
    ledger = process(told, choice(1, "cached", 64, **OPERATION))
    found = counts(locked(operation(1)), ledger)
    assert found == {"locked": 1, "unused": 1, "unenforceable": 1}


def test_what_is_not_in_the_lock_is_never_silent() -> None:
    """Case P11: by a heuristic it was decided by rule; a cache may hold anything."""
    ledger = process(choice(1, "heuristic", **OPERATION), choice(2, "cached", **OPERATION))
    found = cover(locked(), [ledger])
    assert (found.count("fallback"), found.count("unenforceable")) == (1, 1)
    (line,) = found.closing()[-1:]
    assert line.startswith("not enforceable: inductor gemm:mm n=2: a compile cache decided it")


@pytest.mark.parametrize("how", ["tuned", "disk"])
def test_what_was_timed_and_is_not_in_the_lock_is_missed(how: str) -> None:
    found = cover(lock(), [process(choice(1, how), choice(2, how, alternatives=1))])
    (missed,) = found.entries["missed"]
    assert (missed["key"], "by timing" in missed["text"]) == ({"n": 1}, True)


def test_a_decision_past_the_chooser_has_a_line_of_its_own() -> None:
    told = problem("bypass", "mapped, and no call was seen", chooser="cublaslt", kernel="matmul")
    ledgers = [process(told), process(told, rank=1)]
    assert cover(lock(), ledgers).closing()[1:] == (
        "cublaslt: 1 not enforceable",
        "not enforceable: cublaslt matmul: mapped, and no call was seen",
    )


def test_an_equal_miss_of_two_choosers_is_two() -> None:
    ledger = process(choice(1, "fallback"), choice(1, "fallback", chooser="inductor"))
    assert counts(lock(), ledger) == {"fallback": 2}


class TestSettings:
    """The switches of other libraries: held, differing, not enforceable, new."""

    def line(self, value: Any = "Ring", held: str = "recorded", **more: Any) -> dict[str, Any]:
        line = {"t": "setting", "chooser": "nccl", "name": "ALGO", "value": value, "held": held}
        return {**line, "text": "why", **more}

    def lock(self, held: Any = "recorded", value: Any = "Ring") -> Lock:
        return replace(lock(), settings=(Setting("nccl", "ALGO", value, held, "noted"),))

    def row(self, made: Lock, *ledgers: ProcessLedger) -> dict[str, Any]:
        (row,) = cover(made, ledgers).report()["settings"]
        found: dict[str, Any] = row
        return found

    @pytest.mark.parametrize("held", ["forced", "recorded"])
    def test_one_that_stands_as_locked_is_held(self, held: str) -> None:
        ledger = process(self.line(held=held))
        assert self.row(self.lock(held), ledger)["state"] == "held"
        assert counts(self.lock(held), ledger) == {}
        assert cover(self.lock(held), [ledger]).closing()[1:] == ("nccl: 1 setting held",)

    def test_one_of_a_library_that_was_idle_has_no_row(self) -> None:
        assert cover(self.lock(), [process()]).settings == ()

    @pytest.mark.parametrize(("held", "field"), [("forced", "invalid"), ("recorded", "drifted")])
    def test_one_that_differs_is_named_with_both_values(self, held: str, field: str) -> None:
        ledger = process(self.line("Tree", held))
        row = self.row(self.lock(held), ledger)
        assert (row["state"], row["locked"], row["value"]) == ("differs", "Ring", "Tree")
        found = cover(self.lock(held), [ledger])
        assert [each["setting"] for each in found.entries[field]] == ["ALGO"]
        assert "'Ring', found 'Tree'" in found.broken_text(field)
        assert found.broken("error") == (field,)
        assert ("drifted: nccl ALGO" in found.notes[0]) if held == "recorded" else True

    def test_one_rank_that_differs_is_told_apart(self) -> None:
        ledgers = [
            process(self.line(value), rank=rank) for rank, value in enumerate(("Ring", "Tree"))
        ]
        rows = cover(self.lock(), ledgers).settings
        assert [(row.state, row.processes) for row in rows] == [
            ("held", ("rank 0",)),
            ("differs", ("rank 1",)),
        ]

    def test_ranks_that_differed_in_the_recording_may_differ_again(self) -> None:
        made = self.lock(value="'Ring' | 'Tree'")
        ledgers = [process(self.line("Tree")), process(self.line("Ring"), rank=1)]
        assert counts(made, *ledgers) == {}
        assert counts(made, process(self.line("CollNet"))) == {"drifted": 1}

    def test_one_that_the_chooser_could_not_set_is_counted_once(self) -> None:
        told = problem("invalid", "the program has Tree", chooser="nccl", kernel="ALGO")
        assert counts(self.lock("forced"), process(told, self.line("Tree", "forced"))) == {
            "invalid": 1
        }

    def test_a_forced_one_that_nothing_holds_here_is_invalid(self) -> None:
        assert counts(self.lock("forced"), process(self.line(held="no"))) == {"invalid": 1}

    @pytest.mark.parametrize("locked", ["recorded", "no", None])
    def test_one_that_nothing_holds_is_not_enforceable(self, locked: str | None) -> None:
        made = lock() if locked is None else self.lock(locked)
        found = cover(made, [process(self.line(held="no"))])
        assert found.settings[0].state == "not enforceable"
        assert found.closing()[-1] == "not enforceable: nccl ALGO: why"

    def test_one_that_the_lock_does_not_know_is_new_and_said(self) -> None:
        found = cover(lock(), [process(self.line())])
        assert found.settings[0].state == "new"
        assert found.notes == ("nccl ALGO = 'Ring': active here and not in the lock: record again",)
        assert found.broken("error") == ()

    def test_a_switch_that_pinner_sets_otherwise_than_when_recording_drifted(self) -> None:
        made = replace(lock(), policy={"inductor.deterministic": False})
        switch = self.line(True, "set", chooser="inductor", name="deterministic")
        found = cover(made, [process(switch)])
        (drifted,) = found.entries["drifted"]
        assert drifted["text"] == (
            "the lock was recorded with inductor.deterministic = false, this pinner sets true"
        )
        same = {**switch, "value": False}
        assert cover(made, [process(same)]).settings[0].state == "held"
        assert cover(lock(), [process(same)]).settings[0].state == "new"


def test_a_large_lock_is_covered_at_once() -> None:
    """1,000 entries and 8 ranks; anything quadratic would be felt."""
    import time

    entries = [entry(n) for n in range(1000)]
    ledgers = [process(*(choice(n, "forced") for n in range(1000)), rank=r) for r in range(8)]
    begun = time.process_time()
    assert counts(lock(*entries), *ledgers) == {"locked": 1000, "used": 1000}
    assert time.process_time() - begun < 2.0


def who(
    rank: int | None, world: int | None = 2, argv: tuple[str, ...] = ("train.py",)
) -> ProcessRecord:
    return ProcessRecord(1, "h", rank, world, "r", argv, "")


@pytest.mark.parametrize(
    ("ranks", "hosts", "more"), [(2, 1, False), (1, 1, False), (4, 1, True), (2, 2, True)]
)
def test_a_run_of_more_ranks_or_hosts_than_were_validated_is_told(
    ranks: int, hosts: int, more: bool
) -> None:
    processes = [
        ProcessRecord(1, f"h{rank % hosts}", rank, ranks, "r", ("train.py",), "")
        for rank in range(ranks)
    ]
    locked = Run(("train.py",), "", "", world_size=2, hosts=1)
    text = participation.larger(locked, participation.judge(processes))
    size = f"{ranks} ranks on {hosts} host"
    assert (text is not None) == more
    assert text is None or ("validated with 2 ranks on 1 host, " in text and size in text)


class TestWhoHadToTakePart:
    def test_somebody(self) -> None:
        assert participation.judge([]).missing == ("no process took part",)
        assert participation.judge([who(None, None)]).complete

    def test_every_rank_below_a_world_size_that_was_seen(self) -> None:
        found = participation.judge([who(0, 4), who(2, 4)])
        assert [line.split(" (")[0] for line in found.missing] == [
            "rank 1 never reported",
            "rank 3 never reported",
        ]
        assert (found.ranks, found.world) == ((0, 2), 4)

    def test_a_world_that_shrank_asks_for_both(self) -> None:
        assert participation.judge([who(0, 2), who(1, 2), who(0, 1)]).complete
        assert len(participation.judge([who(0, 3), who(0, 1)]).missing) == 2

    @pytest.mark.parametrize(
        "argv",
        [
            ("/opt/env/bin/torchrun", "--nproc_per_node", "2"),
            ("/x/torch/distributed/run.py", "train.py"),
            ("torch.distributed.run", "train.py"),
        ],
    )
    def test_torchruns_agent_is_nobody(self, argv: tuple[str, ...]) -> None:
        """It imports torch, and under srun it even has a rank: its node's."""
        assert participation.judge([who(None, None, argv)]).processes == 0
        found = participation.judge([who(0, 1, argv), who(0), who(1)])
        assert (found.processes, found.complete) == (2, True)

    def test_helpers_without_a_rank_never_count_as_missing(self) -> None:
        assert participation.judge([who(0), who(1), who(None, None), who(None, None)]).complete

    def test_expected_ranks_replace_the_world_size(self) -> None:
        """On the second of two nodes, say, each with a launcher of its own: any four will do."""
        assert participation.judge([who(rank, 8) for rank in (4, 5, 6, 7)], expect=4).complete
        found = participation.judge([who(0, 2), who(1, 2)], expect=4)
        assert found.missing == ("4 ranks were expected, 2 took part",)
        assert not participation.judge([who(None, None)], expect=2).complete

    def test_a_rank_with_a_launcher_of_its_own_answers_for_itself(self) -> None:
        own = participation.Place(3, 8)
        assert participation.judge([who(3, 8)], own=own).complete
        assert not participation.judge([who(2, 8)], own=own).complete

    def test_a_launcher_for_each_node_answers_for_no_rank_elsewhere(self) -> None:
        """srun starts a launcher on each of 2 nodes, torchrun starts 8 ranks under each."""
        own = participation.Place(1, 2)
        assert participation.judge([who(rank, 16) for rank in range(8, 16)], own=own).complete
        assert not participation.judge([], own=own).complete

    def test_many_absent_ranks_are_counted(self) -> None:
        missing = participation.judge([who(0, 2048)]).missing
        assert missing[0] == "rank 1 never reported (WORLD_SIZE was 2048; see --expect)"
        assert missing[-1] == "and 2039 more ranks"
