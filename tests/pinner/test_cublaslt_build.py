"""The library in front of cuBLASLt is compiled once, and whole or not at all; none is mistaken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pinner.inside.choosers.cublaslt import build
from tests import lanes
from tests.fakes.cublaslt_stand_in import STRICT, built
from tests.session_rig import REPO

COUNTING = """#!/bin/sh
echo compiled >> "{log}"
while [ "$1" != -o ]; do shift; done
sleep 0.1
exec cp "{ready}" "$2"
"""


@pytest.fixture(name="compiler")
def _compiler(tmp_path: Path) -> tuple[Path, Path]:
    """A compiler that writes a line each time it runs, and always makes the true library.

    Returns (its path, the file of lines).
    """
    path, log = tmp_path / "counting-cc", tmp_path / "log"
    path.write_text(COUNTING.format(log=log, ready=built() / "interpose.so"))
    path.chmod(0o755)
    log.touch()
    return path, log


def environ(folder: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PINNER_CACHE_DIR": str(folder), **more}


class TestCache:
    def test_it_is_compiled_once(self, tmp_path: Path, compiler: tuple[Path, Path]) -> None:
        env = environ(tmp_path / "cache", CC=str(compiler[0]))
        first, second = build.library(env), build.library(env)
        assert first == second
        assert build.digest_of(first) == build.source_digest()
        assert compiler[1].read_text() == "compiled\n"
        assert os.listdir(Path(first).parent) == [Path(first).name], "nothing is left lying about"

    def test_another_compiler_is_another_file(
        self, tmp_path: Path, compiler: tuple[Path, Path]
    ) -> None:
        names = {
            build.library(environ(tmp_path, **more)) for more in ({"CC": str(compiler[0])}, {})
        }
        assert len(names) == 2

    def test_other_source_is_another_file(
        self, tmp_path: Path, compiler: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        env = environ(tmp_path / "cache", CC=str(compiler[0]))
        before = build.library(env)
        copy = tmp_path / "source"
        shutil.copytree(build.source_folder(), copy)
        (copy / "abi.h").write_text((copy / "abi.h").read_text() + "/* changed */\n")
        monkeypatch.setattr(build, "source_folder", lambda: str(copy))
        assert build.library(env) != before
        assert compiler[1].read_text() == "compiled\n" * 2

    def test_many_at_once_end_with_one_whole_file(
        self, tmp_path: Path, compiler: tuple[Path, Path]
    ) -> None:
        env = environ(tmp_path / "cache", CC=str(compiler[0]))
        found: list[str] = []
        threads = [
            threading.Thread(target=lambda: found.append(build.library(env))) for _ in "abcd"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4
        assert len(set(found)) == 1
        assert os.listdir(Path(found[0]).parent) == [Path(found[0]).name]
        assert build.digest_of(found[0]) == build.source_digest()

    @pytest.mark.parametrize(
        ("more", "expected"),
        [
            ({"PINNER_CACHE_DIR": "/c", "XDG_CACHE_HOME": "/x"}, "/c/cublaslt"),
            ({"XDG_CACHE_HOME": "/x"}, "/x/pinner/cublaslt"),
        ],
    )
    def test_where_it_is_kept(self, more: dict[str, str], expected: str) -> None:
        assert build.cache_folder(more) == expected

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(build.BuildFault, match="set PINNER_CACHE_DIR to a folder"):
            build.library(environ(tmp_path / "file"))


class TestCompiler:
    def test_none_is_a_clear_error(self, tmp_path: Path) -> None:
        with pytest.raises(build.BuildFault) as caught:
            build.library({"PATH": str(tmp_path), "PINNER_CACHE_DIR": str(tmp_path)})
        for word in ("cc, gcc, clang", "install gcc", "PINNER_CUBLASLT_LIBRARY", "--cublaslt off"):
            assert word in str(caught.value)

    def test_the_one_in_cc_must_be_there(self, tmp_path: Path) -> None:
        with pytest.raises(build.BuildFault, match="looked for no-such-cc"):
            build.library(environ(tmp_path, CC="no-such-cc -m64"))

    def test_a_command_that_cannot_be_split_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(build.BuildFault, match='C compiler in CC, found "cc \'"'):
            build.library(environ(tmp_path, CC="cc '"))

    def test_one_that_fails_is_quoted(self, tmp_path: Path) -> None:
        broken = tmp_path / "broken-cc"
        broken.write_text("#!/bin/sh\necho 'x.c:1: error: no such header'\nexit 1\n")
        broken.chmod(0o755)
        with pytest.raises(build.BuildFault, match=r"x\.c:1: error: no such header"):
            build.library(environ(tmp_path / "cache", CC=str(broken)))
        assert os.listdir(tmp_path / "cache" / "cublaslt") == []

    def test_flags_in_cc_are_passed(self, compiler: tuple[Path, Path]) -> None:
        words = build.find_compiler({"PATH": os.environ["PATH"], "CC": f"{compiler[0]} -m64"})
        assert words == [str(compiler[0]), "-m64"]

    def test_the_source_has_no_warnings(self, tmp_path: Path) -> None:
        """With every compiler of this machine; the tests' own library is built so too."""
        lanes.require_command("cc", "gcc")
        for name in ("gcc", "clang"):
            if shutil.which(name):
                build.compile_to(str(tmp_path / f"{name}.so"), [name], [*STRICT, "-Wshadow"])


class TestPrebuilt:
    def test_it_is_used(self, tmp_path: Path) -> None:
        ready = str(built() / "interpose.so")
        assert build.library({build.PREBUILT: ready, "PATH": ""}) == ready

    def test_a_relative_path_is_that_of_the_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The loader would look for a name without a slash in folders of its own."""
        monkeypatch.chdir(built())
        ready = str(built() / "interpose.so")
        assert build.library({build.PREBUILT: "interpose.so"}) == ready

    def test_it_is_built_by_the_module(self, tmp_path: Path) -> None:
        out = tmp_path / "out.so"
        module = "pinner.inside.choosers.cublaslt.build"
        command = [sys.executable, "-m", module, str(out)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=REPO)
        assert done.returncode == 0, done.stderr
        assert build.library({build.PREBUILT: str(out)}) == str(out)
        done = subprocess.run(command[:-1], capture_output=True, text=True, cwd=REPO)
        assert done.returncode == 64
        assert "OUT.so" in done.stderr

    def test_one_that_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(build.BuildFault, match="there is no such file"):
            build.library({build.PREBUILT: str(tmp_path / "none.so")})

    def test_one_of_other_source(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        ready = str(built() / "interpose.so")
        monkeypatch.setattr(build, "source_digest", lambda: "0" * 32)
        with pytest.raises(build.BuildFault, match="built from other source"):
            build.library({build.PREBUILT: ready})

    def test_something_else_is_not_loaded(self, tmp_path: Path) -> None:
        """Loading a library runs its code."""
        mark = tmp_path / "ran"
        run = f'void f(void) {{ fclose(fopen("{mark}", "w")); }}'
        source = f"#include <stdio.h>\n__attribute__((constructor)) {run}\n"
        (tmp_path / "x.c").write_text(source)
        command = ["cc", "-shared", "-fPIC", str(tmp_path / "x.c"), "-o", str(tmp_path / "x.so")]
        subprocess.run(command, check=True)
        with pytest.raises(build.BuildFault, match="is not the library that watches cuBLASLt"):
            build.library({build.PREBUILT: str(tmp_path / "x.so")})
        assert not mark.exists()
