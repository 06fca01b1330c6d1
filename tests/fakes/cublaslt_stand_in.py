"""Builds the stand-ins of cuBLASLt and what is linked with them, and runs programs on them."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pinner.inside.choosers.cublaslt import build, mapped
from tests import lanes
from tests.session_rig import Line, SessionRig

HERE = Path(__file__).resolve().parent
STRICT = ("-Wall", "-Wextra", "-Werror")
VERSIONS = {13: 130200, 12: 120805}
HEAD = "from cublaslt_calls import *\n"


@functools.cache
def built() -> Path:
    """The folder of all libraries of the tests, compiled once in this process; needs a compiler."""
    lanes.require_command("cc", "gcc")
    folder = Path(tempfile.mkdtemp(prefix="pinner-fakes-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    build_all(folder)
    return folder


def build_all(folder: Path) -> None:
    """Compile every library of the tests into `folder`, with warnings as errors."""
    for major, version in VERSIONS.items():
        _stand_in(folder, major, version)
    other = folder / "older"
    other.mkdir()
    _stand_in(other, 13, 130100)
    _shared(folder / "libcudart.so.13", ["cudart.c"], ["-Wl,-soname,libcudart.so.13"])
    lt, lt12 = ((folder / f"libcublasLt.so.{n}", folder / f"libcublas.so.{n}") for n in (13, 12))
    _shared(folder / "libconsumer.so", ["cublaslt_consumer.c"], ["-Wl,-z,lazy"], lt)
    _shared(folder / "libconsumer12.so", ["cublaslt_consumer.c"], link=lt12)
    _shared(folder / "libby_handle.so", ["cublaslt_consumer.c"], ["-DBY_HANDLE"], lt)
    _shared(folder / "libstatic.so", ["cublaslt_consumer.c", "cublaslt.c"], ["-Wl,-Bsymbolic"])
    _shared(folder / "libstatic_open.so", ["cublaslt_consumer.c", "cublaslt.c"])
    build.compile_to(str(folder / "interpose.so"), ["cc"], STRICT)


def _stand_in(folder: Path, major: int, version: int) -> None:
    names = folder / f"versions{major}"
    names.write_text(f"libcublasLt.so.{major} {{ cublasLt*; fake_*; }};\n")
    flags = [f"-DVERSION={version}", f"-Wl,--version-script={names}"]
    lt = folder / f"libcublasLt.so.{major}"
    _shared(lt, ["cublaslt.c"], [*flags, f"-Wl,-soname,{lt.name}"])
    cublas = folder / f"libcublas.so.{major}"
    _shared(cublas, ["cublas.c"], [f"-DVERSION={version}", f"-Wl,-soname,{cublas.name}"], [lt])


def _shared(
    out: Path, files: Sequence[str], flags: Sequence[str] = (), link: Sequence[Path] = ()
) -> None:
    sources = [str(HERE / name) for name in files]
    libraries = ["-Wl,--no-as-needed", *map(str, link)] if link else []
    rpath = [f"-Wl,-rpath,{out.parent}"]
    command = ["cc", "-std=gnu11", "-O1", "-fPIC", "-shared", *STRICT, *flags, *sources]
    done = subprocess.run(
        [*command, "-o", str(out), *libraries, *rpath, "-ldl", "-lpthread"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


class Rig(SessionRig):
    """A session with `--cublaslt on`, whose programs find the stand-ins and `cublaslt_calls`."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **{"cublaslt": "on", "evidence": False, **settings})
        self.fakes = built()

    @staticmethod
    def library() -> Path:
        """The library in front of cuBLASLt, compiled with warnings as errors."""
        return built() / "interpose.so"

    def enforce_choices(self, choices: Sequence[Mapping[str, Any]]) -> None:
        """Turn to enforcing recorded choices."""
        self.enforce({"cublaslt": entries(choices)})

    def calls(self, code: str, behaviour: str = "", **more: str) -> list[Any]:
        """Run a program of calls; returns what it showed. It must end well."""
        done = self.program(code, behaviour, **more)
        assert done.returncode == 0, done.stderr
        return [json.loads(text) for text in done.stdout.splitlines()]

    def program(
        self, code: str, behaviour: str = "", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of calls under the stand-in's `behaviour` (see cublaslt.c)."""
        return self.script(HEAD + code, **self._environ(behaviour, **more))

    def program_file(
        self, path: str, behaviour: str = "", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """The same for a program in a file, which imports `cublaslt_calls` itself."""
        return self.python(path, **self._environ(behaviour, **more))

    def _environ(self, behaviour: str, **more: str) -> dict[str, str]:
        return {
            "CUBLASLT_FAKES": str(self.fakes),
            "FAKE_CUBLASLT": behaviour,
            "PYTHONPATH": str(HERE),
            build.PREBUILT: str(self.fakes / "interpose.so"),
            **more,
        }

    def map_files(self) -> list[Path]:
        """The map files of all processes, in the order of their names."""
        return sorted((self.folder / "cublaslt").glob("*.map"))

    def mapped(self, kind: str | None = None) -> list[Line]:
        """The lines of all map files, of one type or all."""
        found = [line for path in self.map_files() for line in mapped.lines(str(path))]
        return [line for line in found if kind is None or line["t"] == kind]

    def choices(self) -> list[Line]:
        """The choices of all map files."""
        return self.mapped("choice")

    def problems(self) -> dict[str, list[str]]:
        """The texts of all problems, of maps and ledgers, by kind."""
        found: dict[str, list[str]] = {}
        for line in [*self.mapped("problem"), *self.lines("problem")]:
            found.setdefault(line["kind"], []).append(line["text"])
        return found


def entries(choices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Recorded choices as the entries of compiled pins."""
    found = []
    for line in choices:
        algo = {name: value for name, value in line["config"].items() if name != "blob"}
        found.append({"problem": line["key"], "algo": algo, "blob": line["config"]["blob"]})
    return found
