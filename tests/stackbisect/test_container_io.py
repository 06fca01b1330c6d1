"""What goes into and comes out of containers: tars, globbed files, output without secrets."""

from __future__ import annotations

import io
import itertools
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackbisect.runtimes import archive, container_files
from stackbisect.runtimes.container_output import OutputFile


def _tar(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for info, data in members:
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _file(name: str, data: bytes = b"x", mtime: float = 0) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.mtime = mtime  # type: ignore[assignment]
    return info, data


def _chunks(data: bytes, size: int = 700) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def test_a_tree_comes_back_as_it_was_packed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "er" / "f").write_bytes(os.urandom(5000))
    (tree / "__pycache__").mkdir()
    packed = archive.pack([("name", tree)], {"name/deep": 0o1777, "name/new": 0o1777})
    with tarfile.open(fileobj=io.BytesIO(packed)) as found:
        modes = {info.name: info.mode for info in found}
    assert modes == {
        "name": 0o755,
        "name/deep": 0o1777,
        "name/deep/er": 0o755,
        "name/deep/er/f": 0o644,
        "name/new": 0o1777,
    }
    archive.unpack(_chunks(packed), tmp_path / "out")
    same = (tmp_path / "out/deep/er/f").read_bytes() == (tree / "deep/er/f").read_bytes()
    assert same


def test_nothing_is_written_outside_the_target(tmp_path: Path) -> None:
    link = tarfile.TarInfo("s/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    members = [
        _file("s/../../evil"),
        _file("s/a/../../evil"),
        (link, b""),
        _file("s/good"),
        _file("/s/absolute"),
    ]
    written = archive.unpack(_chunks(_tar(members)), tmp_path / "target")
    assert written == [tmp_path / "target" / "good"]
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["good", "target"]


def test_a_link_already_in_the_target_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("safe")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "f").symlink_to(victim)
    archive.unpack([_tar([_file("s/f", b"new")])], tmp_path / "target")
    assert victim.read_text() == "safe"
    assert (tmp_path / "target" / "f").read_text() == "new"


def test_a_cut_stream_is_an_error_and_never_a_short_file(tmp_path: Path) -> None:
    whole = _tar([_file("s/f", b"y" * 3000)])
    with pytest.raises(archive.ArchiveError):
        archive.unpack(_chunks(whole[:1500]), tmp_path)


@pytest.mark.parametrize(
    ("glob", "path", "wanted"),
    [
        ("/out/*.pt", "/out/a.pt", True),
        ("/out/*.pt", "/out/sub/a.pt", False),
        ("/out/**/*.pt", "/out/sub/deep/a.pt", True),
        ("/out/**/*.pt", "/out/a.pt", True),
        ("/out/**", "/out/a/b", True),
        ("/out/step?.bin", "/out/step1.bin", True),
        ("/out/step[0-3].bin", "/out/step7.bin", False),
        ("/out/step[!0-3].bin", "/out/step7.bin", True),
        ("/out/a.b", "/out/axb", False),
    ],
)
def test_globs(glob: str, path: str, wanted: bool) -> None:
    assert bool(re.fullmatch(container_files.translate(glob), path)) is wanted


class _Container:
    """A container that has ended: changed paths outside mounts, and every file with its time."""

    def __init__(self, changed: list[str], files: dict[str, float]) -> None:
        self._changed, self._files = changed, files
        self.asked: list[str] = []

    def changes(self, container: str) -> list[str]:
        return self._changed

    def get(self, container: str, path: str) -> Iterator[bytes]:
        self.asked.append(path)
        parent = os.path.dirname(path)
        found = [
            _file(os.path.relpath(name, parent), name.encode(), time)
            for name, time in self._files.items()
            if name == path or name.startswith(path.rstrip("/") + "/")
        ]
        if not found:
            raise FileNotFoundError(path)
        return _chunks(_tar(found))


def test_only_files_the_command_wrote_count(tmp_path: Path) -> None:
    files = {"/w/new.bin": 200.0, "/w/old.bin": 50.0, "/data/out/a.bin": 201.0, "/data/in.bin": 5.0}
    container = _Container(["/w", "/w/new.bin"], files)
    ended = container_files.Ended("c", "/w", ("/data",), started=100.0)
    found = container_files.fetch(container, ended, ["*.bin", "/data/**/*.bin"], tmp_path)
    assert {name: path.read_text() for name, path in found.items()} == {
        "new.bin": "/w/new.bin",
        "/data/out/a.bin": "/data/out/a.bin",
    }
    assert "/" not in container.asked  # never the whole file system


def test_seconds_of_the_engines_time() -> None:
    assert container_files.seconds("1970-01-01T00:01:00.678901234Z") == 60.0
    assert container_files.seconds("1970-01-01T01:01:00+01:00") == 60.0


@given(
    lines=st.lists(st.sampled_from(["loss 1.5", "tok-SECRET-tok", "SECRET", ""]), max_size=8),
    cuts=st.lists(st.integers(0, 80), max_size=6),
)
def test_no_secret_reaches_the_disk_wherever_chunks_are_cut(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("out") / "log"
    data = "\n".join(lines).encode()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    with OutputFile(path, ["SECRET"]) as out:
        for start, end in itertools.pairwise(edges):
            out.write(data[start:end])
    assert path.read_bytes() == data.replace(b"SECRET", b"<hidden>")


def test_whole_lines_can_be_read_while_the_command_runs(tmp_path: Path) -> None:
    with OutputFile(tmp_path / "log", ["SECRET"]) as out:
        out.write(b"step 1\nstep")
        assert (tmp_path / "log").read_bytes() == b"step 1\n"
