"""How components are asked for, installed and checked in containers; the parts without a daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from stackbisect.asked_components import only, setup, swapping_of
from stackbisect.cli import _parser
from stackbisect.errors import UsageError
from stackbisect.probe import Candidate, InfrastructureError
from stackbisect.runtimes import container_loaded, installing
from stackbisect.runtimes.container_loaded import Expected, Library, Told
from stackbisect.runtimes.derived import Recipe
from stackbisect.runtimes.installing import Swapping
from stackbisect.runtimes.loaded import Loaded
from stackbisect.spaces.components import Component, derived, install, lock, swap

RUN = ["run", "--image", "x/y", "--good", "1", "--bad", "2"]


def _setup(*words: str) -> dict[str, object]:
    return setup(_parser().parse_args([*RUN, *words]))


# -- options ---------------------------------------------------------------------------------------


def test_options_survive_the_journal(tmp_path: Path) -> None:
    (tmp_path / "install-torch").write_text("#!/bin/sh\n")
    asked = ["--swap", str(tmp_path), "--component", "distribution:Foo_Bar", "--files"]
    kept = json.loads(json.dumps(_setup(*asked)))
    swapping = swapping_of(kept)
    assert (swapping.way, swapping.folder) == ("scripts", tmp_path)
    swapping.check()
    assert only(kept) == ["distribution:foo-bar"]
    assert kept["files"] is True
    assert swapping_of({}) == Swapping("graft")  # a journal from before there were components


def test_another_script_is_another_bisection(tmp_path: Path) -> None:
    script = tmp_path / "install-torch"
    found = []
    for text in ("#!/bin/sh\n", "#!/bin/sh\ntrue\n"):
        script.write_text(text)
        found.append(_setup("--swap", str(tmp_path)))
    assert found[0] != found[1]


def test_scripts_that_changed_or_went_stop_a_build_and_no_cleaning(tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "install-torch").write_text("#!/bin/sh\n")
    kept = _setup("--swap", str(folder))
    (folder / "install-torch").unlink()
    with pytest.raises(InfrastructureError, match="bring them back"):
        swapping_of(kept).check()
    folder.rmdir()
    assert swapping_of(kept).way == "scripts"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--swap", "conda"], "--swap: expected graft, pip, apt or a folder"),
        (["--component", "numpy"], "--component: expected KIND:NAME"),
        (["--component", "wheel:numpy"], "--component: expected KIND:NAME"),
        (["--component", "file:opt/x"], "expected an absolute path"),
    ],
)
def test_what_cannot_be_read_says_what_is_expected(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        _setup(*words)


# -- installing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "kind", "version", "wanted"),
    [
        ("graft", "distribution", "1", False),
        ("pip", "distribution", "1", True),
        ("pip", "distribution", "1 (files 0123abcd)", False),
        ("pip", "distribution", "1 in /a, 2 in /b", False),
        ("pip", "distribution", None, False),
        ("pip", "package", "1", False),
        ("apt", "package", "1", True),
        ("apt", "library", "1", False),
    ],
)
def test_what_a_way_cannot_install_is_grafted(
    way: installing.Way, kind: installing.Kind, version: str | None, wanted: bool
) -> None:
    assert Swapping(way).installs(kind, "x", version) is wanted


@pytest.mark.parametrize("version", ["1.0", "1.0; rm -rf /", "$(id)", "it's"])
def test_a_version_is_one_word_to_the_shell(version: str) -> None:
    for kind in ("distribution", "package"):
        script = installing.step(kind, "x", version, Swapping()).script  # type: ignore[arg-type]
        shell = ["sh", "-n", "-c", script]
        assert subprocess.run(shell, capture_output=True).returncode == 0
        # The programs it calls, replaced by one that shows its words.
        shown = 'show() { printf "<%s>" "$@"; }\n'
        said = script.replace("apt-get", "show").replace('"$python" -m pip install', "show install")
        said = (
            said.replace("dpkg-query", "show").partition("for python")[0]
            + said.partition("CACHE_DIR=1")[2]
        )
        done = subprocess.run(["sh", "-c", shown + said], capture_output=True, text=True)
        wanted = f"<x=={version}>" if kind == "distribution" else f"<x={version}>"
        assert wanted in done.stdout
        assert "uid=" not in done.stdout + done.stderr


# -- recipes ---------------------------------------------------------------------------------------

GOOD, BAD = (Candidate(f"sha256:{end}", end, 0, {"reference": end}) for end in ("good", "bad"))
NUMPY = Component("distribution", "numpy", "1", "2")
LEVEL = Component("environment", "LEVEL", "1", "2")


def test_a_lock_or_a_variable_needs_no_image_of_its_own() -> None:
    made = derived(BAD, [swap(GOOD, [LEVEL]), lock("x.toml", "sha256:0")], "x")
    recipe = Recipe.of(made)
    assert recipe.of_files == ()
    assert list(recipe.of_variables) == [(GOOD, "LEVEL")]
    assert Recipe.of(BAD) == Recipe(BAD)


def test_steps_upon_steps_are_built_from_the_first_base() -> None:
    inner = derived(BAD, [swap(GOOD, [NUMPY])], "inner")
    outer = Recipe.of(derived(inner, [install(NUMPY, "1.5")], "outer"))
    flat = Recipe.of(derived(BAD, [swap(GOOD, [NUMPY]), install(NUMPY, "1.5")], "flat"))
    assert outer == flat
    assert outer.base == BAD
    assert {name: each.good for name, each in outer.asked.items()} == {"distribution:numpy": "1.5"}


# -- asked and loaded ------------------------------------------------------------------------------


def _told(libraries: Mapping[str, str], **asked: tuple[str, str] | None) -> Told:
    return Told(
        Loaded(1, 1, {}, tuple(libraries)), {name: (value,) for name, value in asked.items()}
    )


def _fault(
    expected: Expected, libraries: Mapping[str, str], **asked: tuple[str, str] | None
) -> str:
    return container_loaded.fault(expected, _told(libraries, **asked), libraries.get)


@pytest.mark.parametrize(
    ("version", "found", "said"),
    [
        ("1.0", ("1.0", "/site"), ""),
        ("1.0", ("1.0.0", "/site"), ""),
        ("1.0", ("2.0", "/other"), "asked for x 1.0, Python finds 2.0 in /other"),
        ("1.0", None, ""),  # no environment of this Python
        (None, None, ""),
        (None, ("2.0", "/other"), "asked for no x, Python finds 2.0 in /other"),
        ("1.0 in /a, 2.0 in /b", ("2.0", "/b"), ""),
    ],
)
def test_the_version_that_python_finds(
    version: str | None, found: tuple[str, str] | None, said: str
) -> None:
    assert _fault(Expected({"x": version}), {}, x=found) == said


def test_the_content_of_libraries_is_what_counts() -> None:
    ours = Library("nvidia-cublas 12.2", frozenset(["ours"]))
    expected = Expected({}, {"libcublas.so": ours})
    assert _fault(expected, {"/opt/any/libcublas.so.12": "ours"}) == ""
    assert _fault(expected, {"/cuda/libcudnn.so.9": "else"}) == ""
    assert _fault(expected, {"/cuda/libcublas.so.12": "else5678901"}) == (
        "asked for libcublas.so of nvidia-cublas 12.2, loaded is /cuda/libcublas.so.12 (else5678)"
    )
    both = {"/cuda/libcublas.so.11": "else", "/x/libcublas.so.12": "ours"}
    assert _fault(expected, both) == ""
    assert _fault(expected, {}) == ""


def test_what_was_taken_away_must_not_be_loaded() -> None:
    gone = Library("no other copy", gone=frozenset(["theirs"]))
    expected = Expected({}, {"libx.so": gone})
    assert "loaded is /opt/libx.so (theirs)" in _fault(expected, {"/opt/libx.so": "theirs"})
    assert _fault(expected, {"/opt/libx.so": "another"}) == ""
    # A wheel's copy that was swapped too is wanted, not gone.
    joined = gone.joined(Library("tiny 1", frozenset(["theirs"])))
    assert _fault(Expected({}, {"libx.so": joined}), {"/opt/libx.so": "theirs"}) == ""


# -- the hook --------------------------------------------------------------------------------------


def _python(session: Path, code: str, *more: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(each) for each in (session / container_loaded.HOOK, *more))
    env = {**os.environ, "PYTHONPATH": path}
    env |= container_loaded.variables(str(session), ["pytest", "no-such-thing"])
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_a_process_tells_what_it_loaded_and_the_hidden_sitecustomize_runs(tmp_path: Path) -> None:
    container_loaded.place(tmp_path)
    hidden = tmp_path / "own"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("print('the own one')\n")
    done = _python(tmp_path, "import ctypes", hidden)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the own one\n", "")
    told = container_loaded.read(tmp_path)
    assert (told.found.processes, told.found.ended) == (1, 1)
    assert any("_ctypes" in path for path in told.found.libraries)
    ((version, site),) = told.asked["pytest"]  # type: ignore[misc]
    assert version == pytest.__version__
    assert Path(site).is_dir()
    assert told.asked["no-such-thing"] == (None,)
    assert told.host["hostname"] == os.uname().nodename


def test_a_hook_that_cannot_write_stops_nothing(tmp_path: Path) -> None:
    container_loaded.place(tmp_path)
    (tmp_path / container_loaded.LOADED).rmdir()
    done = _python(tmp_path, "print('worked')")
    assert (done.returncode, done.stdout) == (0, "worked\n")
    assert container_loaded.read(tmp_path).found.processes == 0
