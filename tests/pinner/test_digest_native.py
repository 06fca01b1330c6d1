"""The compiled form comes and goes without changing a digest: built once, tried, or left out."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pinner.inside.evidence import nh128_native
from pinner.inside.evidence.digest import NH128, digest

VALUE = torch.arange(3000)
DIGEST = digest(VALUE, NH128)[0]
REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache; this process looks for the library anew, and again afterwards."""
    monkeypatch.setenv("PINNER_CACHE_DIR", str(tmp_path / "cache"))
    nh128_native.forget()
    yield tmp_path / "cache"
    monkeypatch.undo()
    nh128_native.forget()


def compiler(folder: Path, script: str) -> str:
    path = folder / "cc"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return str(path)


def test_it_is_built_once_and_then_found(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert nh128_native.load() is not None
    [library] = cache.iterdir()
    before = library.stat().st_mtime_ns
    nh128_native.forget()
    assert nh128_native.load() is not None
    assert [path.stat().st_mtime_ns for path in cache.iterdir()] == [before]
    assert digest(VALUE, NH128)[0] == DIGEST


def test_without_a_compiler_the_digest_is_the_same(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "cc-that-is-not-there")
    assert nh128_native.load() is None
    assert digest(VALUE, NH128)[0] == DIGEST
    assert digest(VALUE.numpy(), NH128)[0] == DIGEST


def test_a_cc_that_cannot_be_split_is_as_good_as_none(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "gcc '")
    assert nh128_native.load() is not None
    assert digest(VALUE, NH128)[0] == DIGEST


@pytest.mark.parametrize(
    "script",
    ["exit 1\n", "exit 0\n", 'while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"\n'],
    ids=["fails", "makes nothing", "makes nonsense"],
)
def test_a_compiler_that_does_not_work(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setenv("CC", compiler(tmp_path, script))
    assert nh128_native.load() is None
    assert digest(VALUE, NH128)[0] == DIGEST
    assert [path for path in cache.iterdir() if path.name.startswith(".")] == []


def test_a_library_that_computes_something_else_is_not_used(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that a compiler got wrong."""
    source = Path(nh128_native._SOURCE).read_text().replace("h >> 29", "h >> 28")
    (tmp_path / "nh128.c").write_text(source)
    monkeypatch.setattr(nh128_native, "_SOURCE", str(tmp_path / "nh128.c"))
    assert nh128_native.load() is None
    assert digest(VALUE, NH128)[0] == DIGEST


def test_without_march_native_it_is_built_without(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'for a in "$@"; do [ "$a" = -march=native ] && exit 1; done; exec cc "$@"\n'
    monkeypatch.setenv("CC", compiler(tmp_path, script.replace("exec cc", "exec /usr/bin/cc")))
    assert nh128_native.load() is not None


@pytest.mark.parametrize("flags", ["-mno-avx512f", "-mno-avx2 -mno-avx", "-DNO_VECTORS"])
def test_other_vector_units(cache: Path, monkeypatch: pytest.MonkeyPatch, flags: str) -> None:
    """Each path of the source; the check of a fresh library holds all of them."""
    if flags == "-DNO_VECTORS":
        monkeypatch.setenv("CC", "cc -U__AVX512F__ -U__AVX2__ -U__SSE2__ -U__ARM_NEON")
    elif os.uname().machine != "x86_64":
        pytest.skip("flags of x86")
    else:  # behind -march=native, which would bring them back
        monkeypatch.setattr(nh128_native, "_FLAGS", (*nh128_native._FLAGS, *flags.split()))
    native = nh128_native.load()
    assert native is not None
    assert digest(VALUE, NH128)[0] == DIGEST


def test_a_cache_that_others_can_write_to_is_not_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    assert nh128_native.load() is None
    assert list(cache.iterdir()) == []
    cache.chmod(0o700)
    nh128_native.forget()
    assert nh128_native.load() is not None
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_where_the_cache_cannot_be_written_a_private_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("PINNER_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = list(nh128_native._folders())
    assert folders == [str(tmp_path / f"pinner-{os.getuid()}")]
    assert stat.S_IMODE(os.stat(folders[0]).st_mode) == 0o700


def test_processes_that_start_together(cache: Path) -> None:
    """All ranks of a node find an empty cache at once; none sees half a library."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pinner.inside.evidence import nh128_native as n\n"
        "import ctypes\n"
        "sys.stdin.read()\n"
        "memory = ctypes.create_string_buffer(n.check_bytes())\n"
        "native = n.load()\n"
        "print(native.sums(ctypes.addressof(memory), len(memory) - 1).hex())\n"
    )
    command = [sys.executable, "-c", code, str(REPO)]
    pipe = subprocess.PIPE
    ranks = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(6)]
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.close()
        rank.stdin = None
    found = {rank.communicate()[0].strip() for rank in ranks}
    wanted = b"".join(half.to_bytes(8, "little") for half in nh128_native.CHECK).hex()
    assert found == {wanted}
    assert len(list(cache.iterdir())) == 1


def test_a_forked_child_digests_too() -> None:
    """A library with threads must not lean on threads that a child does not have."""
    large = torch.arange(3 << 20)
    wanted = digest(large, NH128)[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if digest(large, NH128)[0] == wanted else 1)
    assert os.waitpid(child, 0)[1] == 0
