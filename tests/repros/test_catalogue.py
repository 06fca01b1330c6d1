"""Every folder of repros/: its form, its README, what its program imports and prints."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from stackbisect.repro import form
from tests import lanes
from tests.command_rig import REPO
from tests.repro_rig import REPROS, copied

NAMES = sorted(path.name for path in REPROS.iterdir() if path.is_dir())
PARTS = ("## Symptom", "## Cause", "## Run it", "## Diagnose", "## Fix")
OURS = ("pinner", "stackbisect", "tests", "benchmarks")
# A clean environment: what finds and runs a program, and nothing of who runs the tests.
KEPT = ("PATH", "HOME", "TMPDIR", "LANG")


def ran(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The digests that the folder's command prints in a fresh process, by output.

    Skips where the repro says that this machine cannot show it.
    """
    command = [
        sys.executable if word == "python" else word for word in form.read(folder).run.command
    ]
    clean = {name: os.environ[name] for name in KEPT if name in os.environ}
    clean["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    if note := re.search(r"^note: .*", done.stdout, re.MULTILINE):
        pytest.skip(note.group())
    return form.printed(done.stdout)


def imported(source: str) -> set[str]:
    """The top-level modules that a program imports, wherever in it."""

    def names() -> Iterator[str]:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                yield from (each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, "a relative import"
                yield node.module or ""

    return {name.partition(".")[0] for name in names()}


def in_order(words: list[str], line: list[str]) -> bool:
    """Whether a line has these words, in this order; options may stand between them."""
    rest = iter(line)
    return all(word in rest for word in words)


def test_the_index_has_every_folder_and_no_other() -> None:
    linked = re.findall(r"\]\((\w+)/README\.md\)", (REPROS / "README.md").read_text())
    assert sorted(linked) == NAMES
    assert len(NAMES) == 6


@pytest.mark.parametrize("name", NAMES)
class TestEachFolder:
    def test_its_form_names_stacks_diagnosis_and_fix(self, name: str) -> None:
        found = form.read(REPROS / name)
        assert [each.name for each in found.stacks][:2] == ["good", "bad"]
        assert found.diagnose
        assert found.fix is not None
        for command in (found.run.command, found.diagnose, found.fix.command):
            files = [word for word in command if re.search(r"\.(py|sh)$", word)]
            assert all((REPROS / name / word).is_file() for word in files)

    def test_its_readme_has_all_parts_and_the_commands_of_its_form(self, name: str) -> None:
        text = (REPROS / name / "README.md").read_text()
        lines = text.splitlines()
        assert lines[0].startswith("# ")
        assert [line for line in lines if line in PARTS] == list(PARTS)
        found = form.read(REPROS / name)
        assert found.fix is not None
        typed = [line.split() for line in text.replace("'", "").splitlines() if line[:2] == "$ "]
        for command in (found.diagnose, found.fix.command):
            words = " ".join(command).removeprefix("env ").split()
            assert any(in_order(words, line) for line in typed), words

    def test_its_program_imports_the_standard_library_and_what_it_needs(self, name: str) -> None:
        names = imported((REPROS / name / "repro.py").read_text())
        needs = form.read(REPROS / name).run.needs
        assert names - sys.stdlib_module_names == set(needs)
        assert not names.intersection(OURS)

    def test_it_runs_in_a_clean_environment_and_prints_digests(
        self, name: str, tmp_path: Path
    ) -> None:
        folder = copied(name, tmp_path)
        found = ran(folder, {})
        assert found
        for stack in form.read(folder).stacks:
            assert not stack.digests or set(stack.digests) == set(found)


@pytest.mark.soak
@lanes.long_form
@pytest.mark.parametrize("name", NAMES)
def test_its_stacks_are_as_their_names_say(name: str, tmp_path: Path) -> None:
    """Good and bad differ; "fixed" is good; those named "fixed-…" are each other's equals.

    Stacks of other versions than the installed ones are left to the tests of that folder.
    """
    folder = copied(name, tmp_path)
    tables = form.read(folder).stacks
    if any(each.versions for each in tables):
        pytest.skip("its stacks have versions of their own")
    seen = {each.name: ran(folder, each.environment) for each in tables}
    assert seen["good"] != seen["bad"]
    assert set(seen["good"]) == set(seen["bad"])
    assert seen.get("fixed", seen["good"]) == seen["good"]
    assert len({str(found) for name, found in seen.items() if name.startswith("fixed-")}) <= 1
    for each in tables:
        assert not each.digests or each.digests == seen[each.name]


def test_the_main_readme_leads_here() -> None:
    assert "(repros/README.md)" in (REPO / "README.md").read_text()
