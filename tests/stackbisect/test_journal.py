"""The journal: what a kill leaves can be read, nothing finished is lost, one program at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stackbisect import journal
from stackbisect.errors import UsageError
from stackbisect.probe import Candidate, EvidenceOptions
from stackbisect.search.verdict import Rule
from stackbisect.spaces.components import derived
from tests.stackbisect.histories import ran, untestable

CANDIDATES = tuple(Candidate(f"sha256:{p}", f"tag-{p}", p, {"env": {"A": "1"}}) for p in range(3))


def header(**changes: object) -> journal.Header:
    """A bisection of three tags."""
    whole = journal.Header(
        command=("python", "train.py"),
        workdir="/somewhere",
        verdict=Rule().name,
        evidence=EvidenceOptions(("out/*.bin",), ("loss (.*)",)),
        time_limit=60.0,
        candidates=CANDIDATES,
        setup={"runtime": "venv", "with": ["scipy"]},
        runtime={"python": "3.11.7"},
        excluded=({"label": "latest", "reason": "no version"},),
        notes=("a note",),
        again=("stackbisect", "run"),
        created="2026-01-01T00:00:00+00:00",
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def begun(folder: Path) -> journal.Journal:
    """A journal with two finished probes and one under way."""
    made = journal.create(folder, header())
    for attempt in (1, 2):
        number = made.start(CANDIDATES[0], attempt, 1.0)
        made.finish(number, CANDIDATES[0], attempt, ran("g"))
    made.start(CANDIDATES[2], 1, 2.0)
    return made


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    with begun(tmp_path / "b") as made:
        made.finish(3, CANDIDATES[2], 1, untestable("no space"))
        made.stop("the daemon is gone", 3.0)
        written = made.record
    found = journal.read(tmp_path / "b")
    assert found == written
    assert found.header == header()
    assert [probed.number for probed in found.probes] == [1, 2, 3]
    assert found.seen()["sha256:0"] == [ran("g"), ran("g")]
    assert found.stopped == "the daemon is gone"


def test_stages_conclusions_and_marks_are_read_back(tmp_path: Path) -> None:
    made_of = derived(CANDIDATES[2], [{"kind": "install", "version": "2"}], "tag-2 with numpy 2")
    with journal.create(tmp_path / "b", header()) as made:
        made.begin_stage("search", {}, 1.0)
        made.conclude("search", {"status": "found", "pair": [1, 2]}, 2.0)
        made.begin_stage("components", {"inventory": {"notes": ["one"]}}, 3.0)
        number = made.start(made_of, 1, 4.0, "components")
        made.finish(number, made_of, 1, ran("g"), "components")
        made.start(made_of, 2, 5.0, "components")
        made.mark(journal.Mark("sha256:1", "bad", "by eye", 6.0))
        made.mark(journal.Mark("sha256:1", "good", "looked again", 7.0))
        made.mark(journal.Mark("sha256:0", "skip", "", 8.0))
        made.unmark("sha256:0", 9.0)
        written = made.record
    found = journal.read(tmp_path / "b")
    assert found == written
    assert found.conclusions == {"search": {"status": "found", "pair": [1, 2]}}
    assert found.stages["components"] == {"inventory": {"notes": ["one"]}}
    assert found.derived == {made_of.id: made_of}
    assert (found.candidate(made_of.id), found.candidate("sha256:1")) == (made_of, CANDIDATES[1])
    assert [(p.stage, p.label) for p in found.probes] == [("components", "tag-2 with numpy 2")]
    assert found.marks == (journal.Mark("sha256:1", "good", "looked again", 7.0),)
    text = (tmp_path / "b" / journal.FILE).read_text()
    assert text.count('"derived":{"id"') == 1  # told once, however often it is tried


def test_probes_under_way_end_one_by_one_and_all_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    with journal.create(folder, header()) as made:
        numbers = [made.start(CANDIDATES[p], 1, float(p)) for p in range(3)]
        assert {n: u.label for n, u in made.record.under_way.items()} == {
            1: "tag-0",
            2: "tag-1",
            3: "tag-2",
        }
        made.finish(numbers[1], CANDIDATES[1], 1, ran("g"))
        made.drop(numbers[2], "needless", 4.0)
        assert sorted(journal.read(folder).under_way) == [1]
        made.start(CANDIDATES[2], 1, 5.0)
    assert sorted(journal.read(folder).under_way) == [1, 4]  # as a kill leaves it
    with journal.resume(folder) as resumed:
        assert not resumed.record.under_way
        assert not journal.read(folder).under_way
        resumed.start(CANDIDATES[0], 1, 6.0)
        resumed.stop("the daemon is gone", 7.0)
        assert not resumed.record.under_way


def test_a_journal_of_an_older_program_is_a_search(tmp_path: Path) -> None:
    """Its lines name no stage."""
    begun(tmp_path / "b").close()
    path = tmp_path / "b" / journal.FILE
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    older = [{name: v for name, v in line.items() if name != "stage"} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in older))
    record = journal.read(tmp_path / "b")
    assert {probed.stage for probed in record.probes} == {"search"}
    assert [each.stage for each in record.under_way.values()] == ["search"]


def test_another_number_of_jobs_is_no_other_bisection() -> None:
    old, new = ({"runtime": "venv", "with": ["scipy"], "jobs": jobs} for jobs in (1, 4))
    journal.check_same("b", header(setup=old), header(setup=new))


def test_a_journal_cut_at_any_byte_of_its_last_line_keeps_all_lines_before(tmp_path: Path) -> None:
    begun(tmp_path / "b").close()
    path = tmp_path / "b" / journal.FILE
    whole = path.read_bytes()
    before_last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(before_last, len(whole)):
        path.write_bytes(whole[:cut])
        assert journal.read(tmp_path / "b").started == 2
        with journal.resume(tmp_path / "b") as resumed:
            assert resumed.start(CANDIDATES[1], 1, 9.0) == 3
        lines = path.read_bytes().split(b"\n")
        assert [json.loads(line)["t"] for line in lines[:-1]][-1] == "start"


def test_a_damaged_line_elsewhere_is_an_error_with_file_and_line(tmp_path: Path) -> None:
    begun(tmp_path / "b").close()
    path = tmp_path / "b" / journal.FILE
    lines = path.read_bytes().split(b"\n")
    lines[2] = lines[2][: len(lines[2]) // 2]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(journal.JournalError, match=r"journal\.jsonl, line 3"):
        journal.read(tmp_path / "b")


@pytest.mark.parametrize("text", ["", "{}\n", "[1]\n", "nonsense\n", '{"t":"header"}\n'])
def test_a_file_without_a_header_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / journal.FILE).write_text(text)
    with pytest.raises(journal.JournalError, match=r"journal\.jsonl"):
        journal.read(folder)


def test_a_header_of_another_version_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / journal.FILE).write_text(json.dumps({**header().to_json(), "version": 2}) + "\n")
    with pytest.raises(journal.JournalError, match="version 2"):
        journal.read(folder)


def test_two_programs_do_not_run_one_bisection(tmp_path: Path) -> None:
    with begun(tmp_path / "b"):
        with pytest.raises(UsageError, match=f"process {os.getpid()}"):
            journal.resume(tmp_path / "b")
        assert journal.in_use(tmp_path / "b")
    assert not journal.in_use(tmp_path / "b")


def test_a_killed_program_gives_the_bisection_back(tmp_path: Path) -> None:
    begun(tmp_path / "b").close()
    code = (
        "import sys, time; from pathlib import Path; from stackbisect import journal\n"
        "held = journal.resume(Path(sys.argv[1])); print('held', flush=True); time.sleep(600)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "b")], stdout=subprocess.PIPE, env=environ
    ) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == b"held\n"
        assert journal.in_use(tmp_path / "b")
        held.send_signal(signal.SIGKILL)
    with journal.resume(tmp_path / "b") as resumed:
        assert len(resumed.record.probes) == 2


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"command": ("python", "other.py")}, 'command: was ["python", "train.py"], is'),
        ({"evidence": EvidenceOptions(("out/*.bin",), ())}, "evidence.stdout: was"),
        ({"verdict": "exit-code"}, 'verdict: was "evidence", is "exit-code"'),
        ({"time_limit": None}, "time_limit: was 60.0, is null"),
        ({"setup": {"runtime": "venv", "with": []}}, 'setup.with: was ["scipy"], is []'),
        ({"runtime": {"python": "3.12.1"}}, 'runtime.python: was "3.11.7", is "3.12.1"'),
        ({"candidates": CANDIDATES[:2]}, "candidate tag-2: gone"),
        ({"candidates": (*CANDIDATES, Candidate("x", "tag-9", 3))}, "candidate tag-9: new"),
        (
            {"candidates": (replace(CANDIDATES[0], id="sha256:9"), *CANDIDATES[1:])},
            "candidate tag-0: was sha256:0, is sha256:9",
        ),
        ({"candidates": CANDIDATES[::-1]}, "order of candidates"),
    ],
)
def test_a_changed_bisection_is_refused_with_the_difference(
    changes: dict[str, object], shown: str
) -> None:
    with pytest.raises(journal.ChangedError) as raised:
        journal.check_same("b", header(), header(**changes))
    assert any(text.startswith(shown) for text in raised.value.differences)
    assert shown in str(raised.value)


def test_another_time_and_another_command_line_change_nothing() -> None:
    journal.check_same("b", header(), header(created="later", again=("stackbisect", "resume")))


def test_a_bisection_set_aside_leaves_its_name_free_and_is_kept(tmp_path: Path) -> None:
    begun(tmp_path / "b").close()
    assert journal.set_aside(tmp_path / "b") == tmp_path / "b.1"
    assert not journal.exists(tmp_path / "b")
    begun(tmp_path / "b").close()
    assert journal.set_aside(tmp_path / "b") == tmp_path / "b.2"
    assert journal.names(tmp_path) == ["b.1", "b.2"]


@pytest.mark.parametrize("name", ["", "../b", "-b", ".b", "a/b", "a b"])
def test_names_that_are_no_folder_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        journal.check_name(name)


def test_an_unknown_name_says_which_are_known(tmp_path: Path) -> None:
    begun(tmp_path / "b").close()
    with pytest.raises(UsageError, match="known: b"):
        journal.resume(tmp_path / "c")


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / ".stackbisect").touch()
    with pytest.raises(UsageError, match="expected a folder that can be made and written"):
        journal.create(tmp_path / ".stackbisect" / "b", header())
