"""Wheel, editable and root use: our files are found, the standard `bisect` stays intact."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
STDLIB = Path(sysconfig.get_paths()["stdlib"]).resolve()

# One worker builds each wheel once.
pytestmark = pytest.mark.xdist_group("packaging")

BISECT_IS_STANDARD = """
import bisect, sys
assert bisect.bisect_left([1, 2, 3], 2) == 1
print(bisect.__file__)
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment of its own; commands run in a folder that is not the checkout."""

    folder: Path
    elsewhere: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(self, *command: str | Path, cwd: Path | None = None) -> str:
        return _run([str(c) for c in command], cwd=cwd or self.elsewhere)

    def evaluate(self, code: str, cwd: Path | None = None) -> str:
        return self.run(self.python, "-c", code, cwd=cwd).strip()

    def site(self) -> Path:
        return Path(self.evaluate("import sysconfig; print(sysconfig.get_paths()['purelib'])"))


def _run(command: list[str], cwd: Path) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PINNER_"))}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _environment(folder: Path, wheel: Path) -> Environment:
    """A fresh environment that holds the wheel and what the wheel needs, taken from this one."""
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], cwd=folder)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    environment = Environment(folder / "env", elsewhere)
    _pip(environment, "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    for name in ("tomli", "tomli-w"):
        _copy_distribution(name, environment.site())
    return environment


def _pip(environment: Environment, *arguments: str) -> str:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    return environment.run(*pip, "--python", environment.python, *arguments)


def _copy_distribution(name: str, site: Path) -> None:
    for file in importlib.metadata.files(name) or []:
        target = (site / file).resolve()
        if site.resolve() not in target.parents or "__pycache__" in file.parts:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(file.locate()), target)


def _build(kind: str, folder: Path) -> Path:
    """Build through the PEP 517 hooks that pip calls; `kind` is "wheel" or "editable"."""
    code = f"import sys; from hatchling.build import build_{kind} as b; print(b(sys.argv[1]))"
    name = _run([sys.executable, "-c", code, str(folder)], cwd=REPO).strip().splitlines()[-1]
    return folder / name


@pytest.fixture(scope="module", name="wheel")
def _wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module", name="installed")
def _installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return _environment(tmp_path_factory.mktemp("installed"), wheel)


@pytest.fixture(scope="module", name="editable")
def _editable(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    wheel = _build("editable", tmp_path_factory.mktemp("editable-wheel"))
    return _environment(tmp_path_factory.mktemp("editable"), wheel)


@pytest.fixture(params=["installed", "editable"], name="environment")
def _either(request: pytest.FixtureRequest) -> Environment:
    found: Environment = request.getfixturevalue(request.param)
    return found


class TestWheel:
    def test_holds_the_two_packages_and_no_bisect(self, wheel: Path) -> None:
        tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
        assert {top for top in tops if not top.endswith(".dist-info")} == {"pinner", "stackbisect"}

    def test_carries_the_configs_of_the_checkout(self, wheel: Path) -> None:
        shipped = {n for n in zipfile.ZipFile(wheel).namelist() if n.startswith("pinner/configs/")}
        in_checkout = {
            f"pinner/{path.relative_to(REPO).as_posix()}"
            for path in (REPO / "configs").rglob("*.toml")
        }
        assert in_checkout
        assert in_checkout <= shipped

    def test_injects_one_file(self, wheel: Path) -> None:
        names = zipfile.ZipFile(wheel).namelist()
        injected = [name for name in names if name.startswith("pinner/inside/inject/")]
        assert injected == ["pinner/inside/inject/sitecustomize.py"]

    def test_needs_tomli_and_tomli_w_and_nothing_else(self, wheel: Path) -> None:
        archive = zipfile.ZipFile(wheel)
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
        needs = [
            line.split(":", 1)[1].strip() for line in lines if line.startswith("Requires-Dist")
        ]
        assert {n for n in needs if "extra ==" not in n} == {"tomli-w>=1.0.0", "tomli>=2.0.1"}

    def test_console_scripts_start(self, environment: Environment) -> None:
        for name in ("pinner", "stackbisect"):
            assert name in environment.run(environment.folder / "bin" / name, "--help")


class TestPytestPlugin:
    def test_is_found_where_pytest_is(self, wheel: Path, tmp_path: Path) -> None:
        environment = _environment(tmp_path, wheel)
        for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
            _copy_distribution(name, environment.site())
        assert "@pytest.mark.repeatable" in environment.run(
            environment.python, "-m", "pytest", "--markers"
        )
        twice = environment.run(
            environment.python, "-m", "pytest", "-p", "pinner.plugin", "--fixtures"
        )
        for fixture in ("repeatable", "repeatable_matrix", "standard"):
            assert f"\n{fixture} -- " in twice


class TestEditable:
    def test_copies_nothing(self, editable: Environment) -> None:
        """A copied file would go stale beside the checkout's own."""
        folders = {path.name for path in editable.site().iterdir() if path.is_dir()}
        assert {n for n in folders if not n.endswith(".dist-info")} == {"tomli", "tomli_w"}

    def test_runs_the_checkout(self, editable: Environment) -> None:
        found = editable.evaluate("import pinner, stackbisect; print(pinner.__file__)")
        assert Path(found) == REPO / "pinner" / "__init__.py"


class TestStandardBisect:
    def test_in_an_environment(self, environment: Environment) -> None:
        found = Path(environment.evaluate(BISECT_IS_STANDARD)).resolve()
        assert found.parent == STDLIB

    def test_after_our_packages_were_imported(self, environment: Environment) -> None:
        code = "import pinner, pinner.cli, stackbisect\n" + BISECT_IS_STANDARD
        assert Path(environment.evaluate(code)).resolve().parent == STDLIB

    def test_from_the_repository_root(self) -> None:
        found = _run([sys.executable, "-c", BISECT_IS_STANDARD], cwd=REPO).strip()
        assert Path(found).resolve().parent == STDLIB

    def test_under_pytest_from_the_repository_root(self, tmp_path: Path) -> None:
        test = tmp_path / "test_it.py"
        test.write_text(
            "import bisect, sys\n"
            "from pathlib import Path\n\n\n"
            "def test_standard():\n"
            f"    assert any(Path(p or '.').resolve() == Path({str(REPO)!r}) for p in sys.path)\n"
            f"    assert Path(bisect.__file__).resolve().parent == Path({str(STDLIB)!r})\n"
        )
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
        config = ["-c", str(REPO / "pyproject.toml"), "--rootdir", str(REPO)]
        assert "1 passed" in _run([*command, *config], cwd=REPO)

    @pytest.mark.parametrize("folder", ["bisect", "tests"])
    def test_has_no_package_that_could_hide_it(self, folder: str) -> None:
        """A regular package wins over the standard library from the repository's root."""
        if folder == "bisect":
            assert not (REPO / "bisect" / "__init__.py").exists()
        else:
            assert not list((REPO / "tests").glob("bisect*"))


class TestShippedFiles:
    def test_are_found_outside_the_checkout(self, environment: Environment) -> None:
        code = (
            "from pinner import shipped; import json; print(json.dumps({"
            "'taps': sorted(p.name for p in shipped.taps_dir().glob('*.toml')),"
            "'inject': sorted(p.name for p in shipped.inject_dir().glob('*.py'))}))"
        )
        found = json.loads(environment.evaluate(code))
        taps = sorted(path.name for path in (REPO / "configs" / "taps").glob("*.toml"))
        assert found == {"taps": taps, "inject": ["sitecustomize.py"]}

    def test_are_the_wheels_own(self, installed: Environment) -> None:
        code = "from pinner import shipped; print(shipped.configs_dir())"
        assert Path(installed.evaluate(code)) == installed.site() / "pinner" / "configs"

    def test_missing_ones_are_named(self, wheel: Path, tmp_path: Path) -> None:
        broken = _environment(tmp_path, wheel)
        shutil.rmtree(broken.site() / "pinner" / "configs")
        code = (
            "from pinner import shipped\n"
            "try:\n    shipped.configs_dir()\nexcept FileNotFoundError as e:\n    print(e)"
        )
        found = broken.evaluate(code)
        assert "configs folder" in found
        assert "reinstall pinner-stackbisect" in found


class TestBesideAVendorsTorch:
    """An image's own torch build must stay: nothing may plan another torch or triton."""

    VENDOR = "2.11.0a0+a6c236b"

    @pytest.mark.parametrize("extra", ["", "[bisect]", "[torch]"])
    def test_plans_no_torch_and_no_triton(self, wheel: Path, tmp_path: Path, extra: str) -> None:
        environment = _bare_environment(tmp_path)
        _fake_installed("torch", self.VENDOR, environment.site())
        _fake_installed("triton", "3.6.0", environment.site())
        index = _offered(wheel, tmp_path / "offered")

        plan = _plan(environment, f"{wheel}{extra}", index)

        assert "pinner-stackbisect" in plan
        assert "tomli-w" in plan
        assert not {"torch", "triton"} & plan.keys()

    def test_the_plan_would_show_them(self, wheel: Path, tmp_path: Path) -> None:
        """The same resolution without the vendor's build: torch and triton could be had."""
        environment = _bare_environment(tmp_path)
        index = _offered(wheel, tmp_path / "offered")

        plan = _plan(environment, f"{wheel}[torch]", index)

        assert {"torch", "triton"} <= plan.keys()


def _bare_environment(folder: Path) -> Environment:
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], cwd=folder)
    return Environment(folder / "env", folder)


def _plan(environment: Environment, requirement: str, index: Path) -> dict[str, str]:
    """What pip would install: names and versions."""
    options = ["--dry-run", "--quiet", "--report", "-", "--no-index", "--find-links", str(index)]
    report = json.loads(_pip(environment, "install", *options, requirement))
    return {item["metadata"]["name"]: item["metadata"]["version"] for item in report["install"]}


def _fake_installed(name: str, version: str, site: Path) -> None:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "INSTALLER").write_text("image\n")
    (info / "RECORD").write_text("")


def _offered(wheel: Path, folder: Path) -> Path:
    """A folder of empty wheels: a new version of all that our metadata can ask for."""
    folder.mkdir()
    versions = {"torch": "2.13.0", "triton": "3.9.0"}
    archive = zipfile.ZipFile(wheel)
    metadata = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    for line in archive.read(metadata).decode().splitlines():
        if line.startswith("Requires-Dist:"):
            name = line.split(":", 1)[1].split(";")[0].strip()
            bare = name.split(">")[0].split("=")[0].split("<")[0].strip()
            _empty_wheel(bare, versions.get(bare, "99.0"), folder)
    return folder


def _empty_wheel(name: str, version: str, folder: Path) -> None:
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
