"""The rules of the house: each file says its purpose, and names no place of one machine."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests import lanes

REPO = Path(__file__).resolve().parents[2]
INSIDE = REPO / "pinner" / "inside"

# Spelled in pieces, so that this file does not find itself.
HOME_FOLDERS = re.compile(
    r"(?<![\w.])/(?:" + "ro" + r"ot|ho" + r"me/(?!me\b)\w+|Us" + r"ers/\w+)\b"
)
PACKAGE_HOSTS = re.compile(
    r"\b(?:pypi\." + r"org|pythonhosted\." + r"org|deb\.debian\." + r"org|registry\.npmjs\."
    r"|download\.pytorch\." + r"org|pypi\.nvidia\." + r"com)",
    re.IGNORECASE,
)
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "managers", "misc", "common"}


def _tracked() -> list[Path]:
    """Every text file that a clone holds."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others"]
    done = subprocess.run(
        [*command, "--exclude-standard"], cwd=REPO, capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip("needs a git checkout")
    found = [REPO / name for name in done.stdout.split("\0") if name]
    return [path for path in found if path.is_file() and not _is_binary(path)]


def _is_binary(path: Path) -> bool:
    return b"\0" in path.read_bytes()[:4096]


def _python_files() -> list[Path]:
    return [path for path in _tracked() if path.suffix == ".py"]


def _relative(paths: list[Path]) -> list[str]:
    return [path.relative_to(REPO).as_posix() for path in paths]


def test_each_python_file_says_its_purpose_on_its_first_line() -> None:
    silent = []
    for path in _python_files():
        text = path.read_text(encoding="utf-8")
        first = text.splitlines()[:2]
        if first and first[0].startswith("#!"):
            first = first[1:]
        if not first or not first[0].startswith(('"""', 'r"""')) or not first[0].strip('"r .'):
            silent.append(path)
    assert _relative(silent) == []


def test_no_file_has_a_vague_name() -> None:
    vague = [path for path in _tracked() if path.stem.lower() in VAGUE_NAMES]
    assert _relative(vague) == []


def _lines_with(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in _tracked():
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{path.relative_to(REPO).as_posix()}:{number}: {line.strip()[:80]}")
    return found


def test_nothing_names_a_home_folder() -> None:
    assert _lines_with(HOME_FOLDERS) == []


def test_nothing_names_the_host_of_a_package_index() -> None:
    assert _lines_with(PACKAGE_HOSTS) == []


def test_injection_folder_holds_one_file() -> None:
    """Whatever lies there becomes a top-level module of every process."""
    tracked = [path for path in _tracked() if path.is_relative_to(INSIDE / "inject")]
    assert _relative(tracked) == ["pinner/inside/inject/sitecustomize.py"]


def _imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Top-level names that are imported absolutely."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").split(".")[0])
    return names


def _foreign(path: Path) -> set[str]:
    """What a file of `inside` imports that is neither the standard library nor itself.

    A function may import the library that it was called for, once that is loaded: torch, numpy and
    triton in the rooms that know them, and the package under its bound name at the start.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = path.relative_to(INSIDE).parts
    lazily = {"torch", "triton", "numpy"} if parts[0] in ("choosers", "evidence") else set()
    if parts[0] == "inject":
        lazily = {"pinner"}
    outside = _imported(ast.walk(tree)) - set(sys.stdlib_module_names)
    return (outside - lazily) | (_imported(tree.body) - set(sys.stdlib_module_names))


def test_inside_imports_itself_and_the_standard_library_only() -> None:
    """It alone is mounted into containers; torch and triton are patched as they load."""
    foreign = {p.relative_to(REPO).as_posix(): _foreign(p) for p in INSIDE.rglob("*.py")}
    assert {name: names for name, names in foreign.items() if names} == {}


def test_inside_reaches_no_further_than_inside() -> None:
    """A relative import must not climb out of `pinner/inside`."""
    climbing = []
    for path in INSIDE.rglob("*.py"):
        depth = len(path.relative_to(INSIDE).parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level > depth:
                climbing.append(f"{path.relative_to(REPO).as_posix()}:{node.lineno}")
    assert climbing == []


def test_inside_is_python_3_8_syntax() -> None:
    for path in INSIDE.rglob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 8))


def _import_all_of_inside(python: str, cwd: Path) -> None:
    """Import every file on its own, as mounted into a container; nothing heavy may come along."""
    modules = sorted(
        ".".join(("inside", *path.relative_to(INSIDE).with_suffix("").parts))
        for path in INSIDE.rglob("*.py")
        if "inject" not in path.parts
    )
    code = (
        "import importlib, importlib.util, sys\n"
        f"where = {str(INSIDE)!r}\n"
        "spec = importlib.util.spec_from_file_location('inside', where + '/__init__.py',"
        " submodule_search_locations=[where])\n"
        "sys.modules['inside'] = package = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(package)\n"
        f"for name in {modules!r}: importlib.import_module(name.replace('.__init__', ''))\n"
        "heavy = {'torch', 'triton', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    command = [python, "-I", "-B", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr


def test_importing_inside_loads_neither_torch_nor_numpy(tmp_path: Path) -> None:
    _import_all_of_inside(sys.executable, tmp_path)


def test_inside_imports_on_python_3_8(tmp_path: Path) -> None:
    """Annotations and calls can be too new where the syntax is not."""
    _import_all_of_inside(lanes.other_python("3.8"), tmp_path)


def test_stackbisect_depends_on_pinner_and_never_the_reverse() -> None:
    sources = {p: ast.parse(p.read_text()) for p in (REPO / "pinner").rglob("*.py")}
    wrong = [p for p, tree in sources.items() if "stackbisect" in _imported(ast.walk(tree))]
    assert _relative(wrong) == []


def test_every_pin_of_the_development_lock_is_exact() -> None:
    lines = (REPO / "requirements" / "dev.lock").read_text().splitlines()
    pins = [line.split(";")[0].strip() for line in lines if line and not line.startswith("#")]
    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", pin)] == []


@pytest.mark.parametrize("name", ["torch==2.13.0", "triton==3.9.0", "fla-core==0.6.0"])
def test_development_stack_is_the_one_that_is_claimed(name: str) -> None:
    lock = (REPO / "requirements" / "dev.lock").read_text()
    assert re.search(rf"^{re.escape(name)}(?:$| )", lock, re.MULTILINE)
