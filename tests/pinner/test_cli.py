"""The `pinner` command: usage, exit codes, JSON, and errors that say what to do."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_rig import Pinner, python

DECIDING = python("deciding.py")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two sealed locks that differ in one config."""
    pinner = Pinner(tmp_path_factory.mktemp("recorded"))
    assert pinner("record", "--dir", "runs", "--", *DECIDING).code == 0
    assert pinner("record", "-o", "other.toml", "--", *DECIDING, TAKES="16").code == 0
    return pinner.folder


@pytest.fixture
def pinner(recorded: Path, tmp_path: Path) -> Pinner:
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    return Pinner(tmp_path)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "COMMAND"),
        (["nonsense"], "nonsense"),
        (["record"], "after `--`"),
        (["record", "--"], "after `--`"),
        (["record", "python", "x.py"], "python"),
        (["record", "--runs", "1", "--", "true"], "at least 2"),
        (["record", "--runs", "many", "--", "true"], "many"),
        (["record", "--on-conflict", "guess", "--", "true"], "guess"),
        (["record", "--evidence-stdout", "(", "--", "true"], "regular expression"),
        (["record", "--phase", "observe", "--", "true"], "--dir"),
        (["record", "--phase", "seal", "--dir", "d", "--", "true"], "runs nothing"),
        (["record", "--fresh", "--", "true"], "--phase"),
        (["record", "-o", "no/folder/x.toml", "--", "true"], "-o no/folder/x.toml"),
        (["enforce", "--agree", "0", "--", "true"], "expected a number of seconds"),
        (["enforce", "--expect", "0", "--", "true"], "at least 1"),
        (["show", "--", "true"], "no `--`"),
        (["diff", "a.toml"], "B"),
        (["merge"], "DIR"),
    ],
)
def test_usage_errors_end_with_64_and_name_what_is_wrong(
    tmp_path: Path, words: list[str], named: str
) -> None:
    said = Pinner(tmp_path)(*words)
    assert (said.code, said.out) == (64, "")
    assert named in said.err
    assert "--help" in said.err


@pytest.mark.parametrize(
    "command", ["record", "enforce", "env", "show", "check", "diff", "doctor", "merge"]
)
def test_every_command_has_help_with_the_exit_codes(tmp_path: Path, command: str) -> None:
    said = Pinner(tmp_path)(command, "--help")
    assert said.code == 0
    assert "65 unreadable input" in said.out
    assert max(len(line) for line in said.out.splitlines()) <= 100


@pytest.mark.parametrize(
    "words",
    [
        ["show", "no.toml"],
        ["check", "no.toml"],
        ["diff", "pinner.lock.toml", "no.toml"],
        ["merge", "no-folder", "-o", "x.toml"],
        ["check", "pinner.lock.toml", "--session", "no-folder"],
        ["record", "--tap", "no-taps.toml", "--", "true"],
        ["record", "--dir", "/proc/none", "--", "true"],
        ["record", "--phase", "validate", "--dir", "no-folder", "--", "true"],
    ],
)
def test_what_cannot_be_read_ends_with_65_and_is_named(pinner: Pinner, words: list[str]) -> None:
    said = pinner(*words)
    assert said.code == 65, said.err
    assert "no-" in said.last or "no.toml" in said.last or "/proc/none" in said.last


@pytest.mark.parametrize("command", ["show", "check", "diff"])
@pytest.mark.parametrize("text", ["", "version = 1\n", "\0", "[[triton", "version = 99\n"])
def test_what_is_no_lock_is_never_a_traceback(pinner: Pinner, command: str, text: str) -> None:
    pinner.path("bad.toml").write_text(text)
    said = pinner(command, "bad.toml", *(["bad.toml"] if command == "diff" else []))
    assert said.code == 65
    assert "bad.toml" in said.last


def test_a_damaged_ledger_is_named_with_its_line(pinner: Pinner) -> None:
    (ledger,) = pinner.path("runs/observe/ledger").iterdir()
    lines = ledger.read_text().splitlines()
    ledger.write_text("\n".join([lines[0], lines[1][:20], *lines[2:]]) + "\n")
    said = pinner("merge", "runs/observe", "-o", "x.toml")
    assert (said.code, f"{ledger.name}:2" in said.last) == (65, True)


class TestShow:
    def test_for_people(self, pinner: Pinner) -> None:
        said = pinner("show")
        assert said.code == 0
        assert "tests.deciding:kernel" in said.out

    def test_for_programs(self, pinner: Pinner) -> None:
        found = pinner("show", "--json").json
        assert (found["entries"], found["run"]["sealed"]) == (2, True)

    def test_a_reader_that_stops_reading_is_no_fault(self, pinner: Pinner) -> None:
        done = subprocess.run(
            ["sh", "-c", f"{sys.executable} -m pinner show | true"],
            cwd=pinner.folder,
            env=pinner.environ(),
            capture_output=True,
            text=True,
        )
        assert done.stderr == ""


class TestCheck:
    def test_a_sealed_lock_on_its_own_stack(self, pinner: Pinner) -> None:
        said = pinner("check", "pinner.lock.toml", "--json")
        assert (said.code, said.json["mismatches"]) == (0, [])

    def test_a_draft_is_refused(self, pinner: Pinner) -> None:
        path = pinner.path("pinner.lock.toml")
        path.write_text(path.read_text().replace("sealed = true", "sealed = false"))
        said = pinner("check", "--no-stack")
        assert (said.code, "note: a draft: no validating runs" in said.out) == (4, True)

    def test_another_stack_is_refused_field_by_field(self, pinner: Pinner) -> None:
        path = pinner.path("pinner.lock.toml")
        text = path.read_text()
        numpy = next(line for line in text.splitlines() if line.startswith("numpy = "))
        path.write_text(text.replace(numpy, 'numpy = "0.1"'))
        said = pinner("check", "--json")
        assert said.code == 4
        (mismatch,) = said.json["mismatches"]
        assert (mismatch["field"], mismatch["locked"]) == ("numpy", "0.1")
        assert pinner("check", "--no-stack").code == 0

    def test_another_python_can_be_asked(self, pinner: Pinner) -> None:
        assert pinner("check", "--", sys.executable).code == 0
        assert pinner("check", "--", "env", sys.executable, "-B").code == 0
        said = pinner("check", "--", "true")
        assert (said.code, "stack facts of true" in said.out) == (4, True)


class TestDiff:
    def test_the_same_lock(self, pinner: Pinner) -> None:
        assert pinner("diff", "pinner.lock.toml", "pinner.lock.toml").code == 0

    def test_another_config_is_named(self, pinner: Pinner) -> None:
        said = pinner("diff", "pinner.lock.toml", "other.toml")
        assert said.code == 1
        assert "BLOCK" in said.out
        found = pinner("diff", "pinner.lock.toml", "other.toml", "--json").json
        assert (found["empty"], found["can_change_bits"]) == (False, True)


class TestMerge:
    def test_ledgers_make_a_draft(self, pinner: Pinner) -> None:
        said = pinner("merge", "runs/observe", "-o", "merged.toml", "--json")
        assert (said.code, said.json["entries"], said.json["sealed"]) == (0, 2, False)
        assert pinner("check", "merged.toml", "--no-stack").code == 4
        assert pinner("enforce", "-l", "merged.toml", "--allow-draft", "--", *DECIDING).code == 0

    def test_a_folder_of_ledgers_itself_will_do(self, pinner: Pinner) -> None:
        assert pinner("merge", "runs/observe/ledger", "-o", "merged.toml").code == 0

    def test_a_folder_without_ledgers_is_nothing_to_merge(self, pinner: Pinner) -> None:
        pinner.path("empty").mkdir()
        said = pinner("merge", "empty", "-o", "merged.toml")
        assert (said.code, "found none" in said.last) == (2, True)

    def test_a_sealed_lock_is_kept(self, pinner: Pinner) -> None:
        said = pinner("merge", "runs/observe")
        assert said.last.endswith("the draft is in pinner.lock.toml.draft")


class TestEnv:
    """Variables for launchers elsewhere."""

    def started(self, pinner: Pinner, variables: dict[str, str]) -> int:
        environ = {**os.environ, **variables}
        return subprocess.run(DECIDING, env=environ, cwd=pinner.folder).returncode

    def test_processes_with_the_variables_are_under_the_lock(self, pinner: Pinner) -> None:
        made = pinner("env", "--json").json
        assert Path(made["session"]).parent == pinner.path(".pinner")
        assert self.started(pinner, made["variables"]) == 0
        said = pinner("check", "--session", made["session"])
        assert said.code == 0
        assert said.out.splitlines()[-1].startswith("2 locked: 2 used")

    def test_they_are_told_whether_cublaslt_is_watched(self, pinner: Pinner) -> None:
        made = pinner("env", "--json", "--cublaslt", "off").json
        session = json.loads((Path(made["session"]) / "session.json").read_text())
        assert session["cublaslt"] == "off"
        assert pinner("env", "--cublaslt", "no").code == 64

    def test_broken_pins_are_found_afterwards(self, pinner: Pinner) -> None:
        made = pinner("env", "--json").json
        assert self.started(pinner, {**made["variables"], "FAULT": "invalid"}) == 0
        assert pinner("check", "--session", made["session"]).code == 3
        made = pinner("env", "--json").json
        assert pinner("check", "--session", made["session"]).code == 3, "nobody took part"

    def test_another_lock_cannot_judge_the_session(self, pinner: Pinner) -> None:
        made = pinner("env", "--json").json
        said = pinner("check", "other.toml", "--session", made["session"])
        assert (said.code, "another lock" in said.out) == (4, True)

    def test_verifying_elsewhere(self, pinner: Pinner) -> None:
        made = pinner("env", "--verify", "--json").json
        assert self.started(pinner, made["variables"]) == 0
        said = pinner("check", "--session", made["session"], "--json")
        assert said.code == 0
        assert len(said.json["verify"]["compared"]) == 1

    def test_a_shell_can_read_them(self, pinner: Pinner) -> None:
        said = pinner("env", "--dir", "some where")
        script = f'{said.out}\necho "$PYTHONPATH"; exec {shlex.join(DECIDING)}'
        done = subprocess.run(
            ["sh", "-c", script],
            env={**os.environ, "PYTHONPATH": "/own"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip().endswith(":/own")
        (session,) = pinner.path("some where").iterdir()
        assert len(list((session / "ledger").iterdir())) == 1

    def test_the_folder_can_come_from_the_environment(self, pinner: Pinner) -> None:
        made = pinner("env", "--json", PINNER_DIR=str(pinner.path("shared"))).json
        assert Path(made["session"]).parent == pinner.path("shared")

    def test_a_draft_is_refused(self, pinner: Pinner) -> None:
        path = pinner.path("pinner.lock.toml")
        path.write_text(path.read_text().replace("sealed = true", "sealed = false"))
        assert pinner("env").code == 4


def test_json_is_written_with_every_ending(pinner: Pinner) -> None:
    """A program that reads it must not have to guess from an empty output."""
    for words in (["enforce", "-l", "no.toml"], ["record", "-o", "x.toml"]):
        said = pinner(*words, "--json", "--", "false")
        assert json.loads(said.out)["exit"] == said.code != 0


class TestStandardStreams:
    """Printing changes no verdict, wherever it goes."""

    def code(self, pinner: Pinner, shell: str, **environ: str) -> tuple[int, str]:
        """The exit code of `pinner` in a shell line, and what went to the shell's stderr."""
        own = f"{shlex.quote(sys.executable)} -m pinner"
        done = subprocess.run(
            ["bash", "-c", shell.replace("PINNER", own)],
            cwd=pinner.folder,
            env=pinner.environ(**environ),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        return done.returncode, done.stderr

    WHERE = (">/dev/full", "2>/dev/full", ">&-", "2>&-", "<&-", "<&- >&- 2>&-")
    WORDS = (
        ("diff pinner.lock.toml other.toml", 1),
        ("check other.toml --no-stack", 0),
        ("enforce --json -- sh -c 'exit 7'", 7),
        ("enforce --json -l no.toml -- true", 96),
        ("record --json -o x.toml -- false", 5),
        ("show no.toml", 65),
        ("nonsense", 64),
    )

    @pytest.mark.parametrize("where", WHERE)
    @pytest.mark.parametrize(("words", "code"), WORDS)
    def test_the_exit_code_stands(self, pinner: Pinner, words: str, code: int, where: str) -> None:
        assert self.code(pinner, f"PINNER {words} {where}")[0] == code

    @pytest.mark.parametrize(("words", "code"), WORDS)
    def test_the_exit_code_stands_without_a_reader(
        self, pinner: Pinner, words: str, code: int
    ) -> None:
        line = f"(sleep 0.2; PINNER {words}; echo $? >code) 2>&1 | true; exit $(cat code)"
        assert self.code(pinner, line) == (code, "")

    def test_help_without_a_reader_is_no_fault(self, pinner: Pinner) -> None:
        line = "(sleep 0.2; PINNER --help; echo $? >code) | true; exit $(cat code)"
        assert self.code(pinner, line) == (0, "")

    def test_what_could_not_be_shown_is_told(self, pinner: Pinner) -> None:
        code, err = self.code(pinner, "PINNER show >/dev/full")
        assert (code, "cannot write to standard output" in err) == (65, True)

    @pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
    def test_a_closed_stream_is_closed_for_the_command_too(
        self, pinner: Pinner, closed: str
    ) -> None:
        """Not a file that pinner happened to open under its number."""
        number = {"<": 0, ">": 1, "2": 2}[closed[0]]
        pinner.path("closed.py").write_text(
            "import os, sys\n"
            "import pinner\n"
            "pinner.fingerprint('a', 1)\n"
            f"try: os.fstat({number})\n"
            "except OSError: sys.exit(9)\n"
        )
        line = f"PINNER enforce -- {shlex.quote(sys.executable)} closed.py {closed}"
        assert self.code(pinner, line)[0] == 9

    def test_a_locale_without_the_characters_is_no_fault(self, pinner: Pinner) -> None:
        ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        said = pinner("show", **ascii_only)
        assert (said.code, "\\u2192" in said.out) == (0, True)
        assert pinner("diff", "pinner.lock.toml", "other.toml", **ascii_only).code == 1

    def test_names_that_are_no_text_are_printed_as_they_came(self, pinner: Pinner) -> None:
        folder = os.fsencode(pinner.folder) + b"/gr\xf6sse"
        done = subprocess.run(
            [sys.executable, "-m", "pinner", "env", "--dir", folder],
            cwd=pinner.folder,
            env=pinner.environ(),
            capture_output=True,
        )
        assert (done.returncode, folder in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["show", "no.toml"], 65),
        (["diff", "pinner.lock.toml", "no.toml"], 65),
        (["check", "--session", "no-folder"], 65),
        (["merge", "no-folder", "-o", "x.toml"], 65),
        (["env", "-l", "no.toml"], 4),
        (["record", "--tap", "no.toml", "-o", "x.toml", "--", "true"], 65),
        (["enforce", "--dir", "/proc/none", "--", "true"], 96),
    ],
)
def test_json_says_why_there_is_no_outcome(pinner: Pinner, words: list[str], code: int) -> None:
    place = words.index("--") if "--" in words else len(words)
    said = pinner(*words[:place], "--json", *words[place:])
    assert said.code == code
    status = {65: "unreadable", 4: "refused", 96: "refused"}[code]
    assert (said.json["exit"], said.json["status"]) == (code, status)
    assert said.text.endswith(said.json["text"])


def test_a_forgotten_separator_is_told(tmp_path: Path) -> None:
    said = Pinner(tmp_path)("record", "--runs", "2", "python", "-u", "x.py")
    assert said.code == 64
    assert "put `--` before the command: pinner record [options] -- python" in said.last
