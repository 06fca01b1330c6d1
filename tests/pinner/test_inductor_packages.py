"""Models compiled ahead of time are written down by their content when they are loaded."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from types import SimpleNamespace

from pinner.inside.choosers.inductor import packages
from pinner.inside.choosers.inductor.lines import Lines
from tests.session_rig import SessionRig


def test_the_real_loader_is_seen_also_where_it_fails(tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(b"no package")
    rig = SessionRig(tmp_path / "session")
    code = f"""
import torch, torch._inductor
try:
    torch._inductor.aoti_load_package({str(tmp_path / "model.pt2")!r})
except Exception as error:
    print("refused")
"""
    done = rig.script(code, RANK="0", WORLD_SIZE="1")
    assert done.stdout.split() == ["refused"], done.stderr
    (line,) = [each for each in rig.lines("setting") if each["chooser"] == "inductor"]
    assert (line["name"], line["held"]) == ("package model.pt2", "recorded")
    assert line["value"] == "sha256:" + hashlib.sha256(b"no package").hexdigest()


def test_an_open_file_is_left_where_it_stood_and_a_missing_one_is_the_loaders_to_name() -> None:
    written: list[dict[str, object]] = []
    package = SimpleNamespace(load_package=lambda path: path.read() if path != "gone" else None)
    packages.patch(package, Lines(written.append, lambda: "now"))
    assert package.load_package(io.BytesIO(b"abc")) == b"abc"
    assert package.load_package("gone") is None
    values = {line["name"]: line["value"] for line in written}
    assert values == {
        "package in memory": "sha256:" + hashlib.sha256(b"abc").hexdigest(),
        "package gone": "unreadable: No such file or directory",
    }
