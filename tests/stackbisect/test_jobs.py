"""Several probes at once: threads, random orders of their ends, interrupts, what is given up."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from pinner.lockfile.codec import read_lock_with_digest, write_lock
from stackbisect import bisection, journal, progress, report, report_text, state
from stackbisect.probe import Candidate, InfrastructureError, Job, ProbeResult
from stackbisect.search import noisy
from stackbisect.search.probing import Found
from stackbisect.sessions import Sessions
from stackbisect.spaces.components import derived, lock
from tests import locks
from tests.stackbisect.histories import probe
from tests.stackbisect.test_bisection import Invented, Outcome, Search, go, header


class Disordered(Invented):
    """Its probes wait for each other, `together` of them, and end in an order that is drawn."""

    def __init__(self, kinds: str, draw: random.Random, together: int = 2) -> None:
        super().__init__(kinds)
        self.together = together
        self.most = 0
        self.ended: list[int] = []
        self.fetched: list[int] = []
        self._draw = draw
        self._changed = threading.Condition()
        self._waiting: list[object] = []
        self._tries: Counter[int] = Counter()

    def run(self, candidate: Candidate, job: Job) -> ProbeResult:
        """Wait to be chosen; the answer depends on how often this candidate was begun."""
        me = object()
        with self._changed:
            self._waiting.append(me)
            self.most = max(self.most, len(self._waiting))
            self._tries[candidate.position] += 1
            attempt = self._tries[candidate.position]
            self._changed.wait_for(lambda: me not in self._waiting or job.stop.is_set())
            if me in self._waiting:
                self._waiting.remove(me)
            self.ended.append(candidate.position)
        return probe(self.kinds[candidate.position], attempt)

    def prefetch(self, candidate: Candidate) -> None:
        """Remember it; what goes wrong here changes nothing."""
        self.fetched.append(candidate.position)
        raise InfrastructureError("the registry is busy")

    @contextmanager
    def letting_go(self) -> Iterator[None]:
        """Choose one probe after another until the bisection is over.

        Only when as many wait as may be under way, or no more have come for a moment.
        """
        over = threading.Event()

        def choose() -> None:
            quiet = 0
            while not over.wait(0.001):
                with self._changed:
                    quiet += 1
                    if self._waiting and (len(self._waiting) >= self.together or quiet > 20):
                        self._waiting.remove(self._draw.choice(self._waiting))
                        quiet = 0
                    self._changed.notify_all()

        thread = threading.Thread(target=choose, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def drawn() -> random.Random:
    """A source of random orders; its seed is printed."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def begin(folder: Path, kinds: str, **setup: Any) -> journal.Journal:
    """A new journal; `setup` is how it is searched."""
    made = header(kinds)
    return journal.create(folder, replace(made, setup={**made.setup, **setup}))


def where(step: Outcome | None) -> tuple[int, int]:
    """The pair that was found."""
    assert isinstance(step, Found), step
    return step.answer.last_good, step.answer.first_bad


def lines(folder: Path) -> list[dict[str, Any]]:
    """The journal's lines after its header."""
    return [json.loads(line) for line in (folder / journal.FILE).read_text().splitlines()[1:]]


@pytest.mark.parametrize("jobs", [2, 3, 5])
def test_any_order_of_ends_gives_the_answer_of_one_at_a_time(tmp_path: Path, jobs: int) -> None:
    draw = drawn()
    for number in range(6):
        size = draw.randrange(8, 40)
        change = draw.randrange(1, size)
        broken = {draw.randrange(1, size - 1) for _ in range(3)} if number % 2 else set()
        kinds = "".join("x" if p in broken else "g" if p < change else "b" for p in range(size))
        alone = go(begin(tmp_path / f"alone-{number}", kinds), Invented(kinds))
        runtime = Disordered(kinds, draw, jobs)
        folder = tmp_path / f"together-{number}"
        with runtime.letting_go():
            assert where(go(begin(folder, kinds), runtime, jobs)) == where(alone), kinds
        assert 1 < runtime.most <= jobs
        record = journal.read(folder)
        assert not record.under_way
        numbers = [line["probe"] for line in lines(folder) if line["t"] == "start"]
        assert numbers == list(range(1, len(numbers) + 1))
        tries = Counter(p.candidate for p in record.probes)
        assert max(tries.values()) <= 2
        assert set(runtime.fetched) <= set(range(1, size - 1))
        assert len(set(runtime.fetched)) == len(runtime.fetched)


def test_every_transition_is_found_where_that_is_asked_for(tmp_path: Path) -> None:
    kinds = "ggbbggggtbbggbbb"
    runtime = Disordered(kinds, drawn())
    with runtime.letting_go():
        step = go(begin(tmp_path / "b", kinds, all_transitions=1), runtime, jobs=4)
    assert isinstance(step, Found)
    seen = [(t.left, t.right) for t in step.answer.transitions]
    assert seen == [(p, p + 1) for p in range(len(kinds) - 1) if kinds[p] != kinds[p + 1]]
    assert not step.answer.monotonic


def test_without_a_good_end_it_is_found_going_back_from_the_bad_one(tmp_path: Path) -> None:
    draw = drawn()
    change = draw.randrange(150, 200)
    kinds = "g" * change + "b" * (200 - change)
    folder = tmp_path / "b"
    runtime = Invented(kinds)
    assert where(go(begin(folder, kinds, no_good_end=True), runtime)) == (change - 1, change)
    distance = 200 - change
    assert len(runtime.tried) <= 2 + 2 * distance.bit_length() + 4
    assert min(runtime.tried) >= 199 - 64  # nothing far from the bad end was tried
    value = report.outcome(journal.read(folder), "b", go(journal.resume(folder), runtime), None)
    assert (value["last_good"], value["first_bad"]) == (f"v{change - 1}", f"v{change}")
    assert state.state(folder)["between"] == [f"v{change - 1}", f"v{change}"]


@pytest.mark.parametrize("jobs", [1, 3])
def test_noisy_probes_are_answered_with_a_probability(tmp_path: Path, jobs: int) -> None:
    """The bad side gives good bits in one of three probes; nothing is unstable by that."""
    draw = drawn()
    change = draw.randrange(2, 15)

    class Noisy(Invented):
        def run(self, candidate: Candidate, job: Job) -> ProbeResult:
            kind, attempt = self.kinds[candidate.position], int(job.session.parent.name)
            return probe("g" if kind == "b" and attempt % 3 == 0 else kind, 1)

    kinds = "g" * change + "b" * (16 - change)
    go(begin(tmp_path / "b", kinds, noisy=True), Noisy(kinds), jobs)
    record = journal.read(tmp_path / "b")
    value = report.outcome(record, "b", Search.of(record.header).outcome(record), None)
    noise = value["noise"]
    assert json.loads(json.dumps(value)) == value
    assert value["status"] == "found"
    if jobs == 1:  # otherwise who gets the odd bits depends on the order
        assert value["first_bad"] == f"v{change}"
    assert noise["decided"]
    assert noise["confidence"] >= 0.95
    assert noise["posterior"][value["first_bad"]] == noise["confidence"]
    assert {each["verdict"] for each in value["verdicts"]} <= {"good", "bad", None}
    tried = sum(each["good"] + each["bad"] for each in noise["counts"].values())
    assert tried == len(record.probes)
    assert f"{value['first_bad']}" in report_text.text(value)


def test_what_noise_does_not_let_decide_is_a_range_with_its_probability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coins on both sides, and few probes: no change is claimed, and no absence of one."""
    monkeypatch.setattr(noisy, "DEFAULT", noisy.Noise(budget=30))

    class Coins(Invented):
        def run(self, candidate: Candidate, job: Job) -> ProbeResult:
            return probe("gb"[coin.randrange(2)], 1)

    for seed in range(5):
        coin, folder = random.Random(seed), tmp_path / str(seed)
        step = go(begin(folder, "g" * 8 + "b" * 8, noisy=True), Coins("g" * 8 + "b" * 8))
        value = report.outcome(journal.read(folder), "b", step, None)
        assert (value["status"], value["exit_code"]) == ("range", 2)
        assert not value["noise"]["decided"]
        text = report_text.text(value)
        assert "30 probes did not tell the place" in text
        assert "not decided" in text
        assert "cannot be tested" not in text


def test_without_noisy_a_candidate_that_differs_from_itself_is_unstable(tmp_path: Path) -> None:
    runtime = Disordered("gg~bb", drawn())
    with runtime.letting_go():
        step = go(begin(tmp_path / "b", "gg~bb"), runtime, jobs=3)
    value = report.outcome(journal.read(tmp_path / "b"), "b", step, None)
    assert value["verdicts"][2]["verdict"] == "unstable"
    assert value["status"] == "range"


# -- ends that come early --------------------------------------------------------------------------


class Held(Invented):
    """Its probes last until they are told to stop; `ends` are those that end by themselves."""

    def __init__(self, kinds: str, ends: Mapping[int, BaseException | None]) -> None:
        super().__init__(kinds)
        self.ends = ends
        self.held: list[Job] = []
        self.begun = threading.Barrier(1)

    def run(self, candidate: Candidate, job: Job) -> ProbeResult:
        """Wait until all are under way; then end, raise, or wait to be told."""
        self.tried.append(candidate.position)
        attempt = self.tried.count(candidate.position)
        self.begun.wait(60)
        if candidate.position not in self.ends:
            self.held.append(job)
            assert job.stop.wait(60)
            raise InfrastructureError("stopped")
        error = self.ends[candidate.position]
        if error is not None:
            raise error
        return probe(self.kinds[candidate.position], attempt)


def test_probes_that_can_change_nothing_any_more_are_stopped(tmp_path: Path) -> None:
    """The good end cannot be tested, which is the answer: the bad end is not waited for."""
    stream = StringIO()
    runtime = Held("xgb", {0: None})
    runtime.begun = threading.Barrier(4)
    with begin(tmp_path / "b", "xgb") as held:
        watcher = progress.Plain(stream)
        record = bisection.Bisection(held, runtime, watcher, None, {}, jobs=4).run()
    assert record.conclusions["search"]["status"] == "ends_untestable"
    dropped = [line["probe"] for line in lines(tmp_path / "b") if line["t"] == "dropped"]
    assert len(dropped) >= 2
    assert all(job.stop.is_set() and not job.scratch.exists() for job in runtime.held)
    assert not record.under_way
    assert "it can change nothing any more" in stream.getvalue()


def test_an_interrupt_stops_all_probes_and_nothing_finished_is_repeated(tmp_path: Path) -> None:
    kinds = "ggggbbbb"
    folder = tmp_path / "b"
    runtime = Held(kinds, {0: None, 7: KeyboardInterrupt()})
    runtime.begun = threading.Barrier(3)
    runtime.kinds = kinds
    with pytest.raises(KeyboardInterrupt):
        go(begin(folder, kinds), runtime, jobs=3)
    record = journal.read(folder)
    assert record.stopped == "interrupted"
    assert not record.under_way
    assert not list(folder.glob("probes/*/scratch"))
    before = record.probes
    again = Invented(kinds)
    again.tried = [int(p.candidate.removeprefix("id-")) for p in before]
    assert where(go(journal.resume(folder), again, jobs=2)) == (3, 4)
    after = journal.read(folder).probes
    assert after[: len(before)] == before
    assert max(Counter(p.candidate for p in after).values()) == 2


def test_machinery_that_fails_in_one_probe_keeps_what_the_others_found(tmp_path: Path) -> None:
    """Nothing new is begun; those under way end by themselves and are finished probes."""
    runtime = Held("gb", {0: None, 1: InfrastructureError("the node is gone")})
    runtime.begun = threading.Barrier(4)
    with pytest.raises(InfrastructureError, match="the node is gone"):
        go(begin(tmp_path / "b", "gb"), runtime, jobs=4)
    record = journal.read(tmp_path / "b")
    assert [p.candidate for p in record.probes] == ["id-0", "id-0"]
    assert record.stopped == "the node is gone"
    assert not record.under_way


def test_a_fault_of_the_program_stops_the_other_probes_too(tmp_path: Path) -> None:
    runtime = Held("gb", {0: ZeroDivisionError("a fault")})
    runtime.begun = threading.Barrier(4)
    with pytest.raises(ZeroDivisionError):
        go(begin(tmp_path / "b", "gb"), runtime, jobs=4)
    assert all(job.stop.is_set() for job in runtime.held)


# -- what people see -------------------------------------------------------------------------------


def test_a_probe_that_ended_among_others_is_named(tmp_path: Path) -> None:
    stream = StringIO()
    runtime = Disordered("ggxbb", drawn())
    with begin(tmp_path / "b", "ggxbb") as held, runtime.letting_go():
        watcher = progress.for_stream(stream)
        bisection.Bisection(held, runtime, watcher, None, {}, jobs=4).run()
    text = stream.getvalue()
    for probed in journal.read(tmp_path / "b").probes:
        assert f"probe {probed.number}: {probed.label}" in text
    assert "untestable · it did not start" in text
    assert all(line.startswith("stackbisect: ") for line in text.splitlines())


def test_on_a_terminal_each_probe_under_way_has_a_line(tmp_path: Path) -> None:
    pytest.importorskip("rich")

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    watcher = progress.for_stream(stream)
    assert isinstance(watcher, progress.Rich)
    runtime = Disordered("ggxbb", drawn())
    with begin(tmp_path / "b", "ggxbb") as held, runtime.letting_go():
        bisection.Bisection(held, runtime, watcher, None, {}, jobs=4).run()
    watcher.close()
    text = stream.getvalue()
    for probed in journal.read(tmp_path / "b").probes:
        assert f"probe {probed.number}  {probed.label}" in text


def test_the_state_has_all_probes_under_way_and_the_time_to_come(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    seen: list[Mapping[str, Any]] = []

    class Looking(Disordered):
        def run(self, candidate: Candidate, job: Job) -> ProbeResult:
            result = super().run(candidate, job)
            seen.append(state.state(folder))
            return replace(result, ended=11.0)  # from 0: eleven seconds each

    runtime = Looking("ggggbbbb", drawn())
    with runtime.letting_go():
        go(begin(folder, "ggggbbbb", jobs=2), runtime, jobs=2)
    assert max(len(each["under_way"]) for each in seen) == 2
    assert seen[0]["seconds_left"] is None
    for each in seen:
        if each["probes"]:
            assert each["seconds_left"] == 11.0 * -(-each["probes_left"] // 2)
    assert state.state(folder)["seconds_left"] == 0


def test_the_state_says_what_later_stages_found(tmp_path: Path) -> None:
    """And where the change is, whatever the probes of later stages say of the two neighbours."""
    kinds = "ggbb"
    with begin(tmp_path / "b", kinds, depth="versions") as held:
        for position, kind in enumerate(kinds):
            for attempt in (1, 2):
                candidate = held.record.header.candidates[position]
                number = held.start(candidate, attempt, 1.0)
                held.finish(number, candidate, attempt, probe(kind, attempt))
        held.conclude("search", {"status": "found", "pair": [1, 2]}, 2.0)
        held.conclude("choices", {"status": "no choices", "last_good": None}, 3.0)
        number = held.start(held.record.header.candidates[1], 3, 4.0, "confirm")
        held.finish(number, held.record.header.candidates[1], 3, probe("~", 3), "confirm")
    now = state.state(tmp_path / "b")
    assert now["between"] == ["v1", "v2"]
    assert now["verdicts"]["v1"] == "good"
    assert [(each["stage"], each["result"]) for each in now["known"]] == [("choices", "no choices")]
    assert now["stage"]["name"] == "components"
    assert now["probes_left"] is None  # it has not looked yet


# -- a candidate under a lock ----------------------------------------------------------------------


def test_a_candidate_under_a_lock_has_its_pins_in_its_session(tmp_path: Path) -> None:
    write_lock(tmp_path / "choices.toml", locks.lock())
    _, digest = read_lock_with_digest(tmp_path / "choices.toml")
    base = Candidate("id-0", "v0", 0)
    locked = derived(base, [lock("choices.toml", digest)], "v0 under the lock")
    sessions = Sessions(tmp_path, "/own", ())
    made = sessions.create(tmp_path / "session", locked, "b-0001")
    settings = json.loads((made.folder / "session.json").read_text())
    pins = json.loads((made.folder / "pins.json").read_text())
    assert (made.mode, made.lock) == ("enforce", tmp_path / "choices.toml")
    assert (settings["mode"], settings["allow"]) == ("enforce", ["*"])
    assert settings["pins"] == str(made.folder / "pins.json")
    assert settings["hidden_pythonpath"] == "/own"
    assert pins["lock"] == digest
    plain = sessions.create(tmp_path / "plain", base, "b-0002")
    assert (plain.mode, plain.lock) == ("observe", None)
    assert not (plain.folder / "pins.json").exists()


def test_a_lock_that_was_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    write_lock(tmp_path / "choices.toml", locks.lock())
    locked = derived(Candidate("id-0", "v0", 0), [lock("choices.toml", "sha256:0")], "locked")
    with pytest.raises(InfrastructureError, match="expected the lock sha256:0"):
        Sessions(tmp_path).create(tmp_path / "session", locked, "b-0001")
