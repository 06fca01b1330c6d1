"""The compile path: real sm_90 binaries, through a driver that launches nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pinner.inside.choosers.triton import code
from tests import triton_rig as rig

ROOT = Path(__file__).parents[2]
LANE = ROOT / "tests" / "workloads" / "compile_lane.py"


def lane(folder: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    """What one process of the compile lane saw; each has a fresh Triton cache."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "lines.json"
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env.update(environment, PYTHONPATH=str(ROOT), TRITON_CACHE_DIR=str(folder / "cache"))
    done = subprocess.run(
        [sys.executable, str(LANE), str(out), *arguments], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    return lane(tmp_path_factory.mktemp("observed"))


@pytest.fixture(scope="module")
def pins(observed, tmp_path_factory):
    path = tmp_path_factory.mktemp("pins") / "pins.json"
    path.write_text(json.dumps(rig.pins_of(observed["lines"])))
    return path


def of(result, line_kind, **fields):
    return [
        line
        for line in result["lines"]
        if line["t"] == line_kind and all(line.get(k) == v for k, v in fields.items())
    ]


def test_records_each_choice_with_its_machine_code(observed):
    choices = of(observed, "choice")
    assert [c["how"] for c in choices] == ["tuned", "tuned"]
    for choice in choices:
        codes = of(observed, "code", kernel=choice["kernel"])
        assert codes
        assert all(c["config"] == choice["config"] for c in codes)
        assert all(c["code"].startswith("sha256:") for c in codes)
        assert all("enable_fp_fusion" in c["options"] for c in codes)


def test_one_config_has_a_binary_for_each_specialisation(observed):
    codes = [c for c in of(observed, "code") if c["kernel"].endswith(":total")]
    assert len({c["spec"] for c in codes}) == 2  # x is divisible by 16, and then it is not


def test_enforced_compiles_the_same_code_and_benchmarks_nothing(observed, pins, tmp_path):
    enforced = lane(tmp_path, "enforce", str(pins))
    assert enforced["benchmarks"] == 0
    assert observed["benchmarks"] > 0
    assert [c["how"] for c in of(enforced, "choice")] == ["forced", "forced"]
    assert of(enforced, "problem") == []
    first = {(c["kernel"], c["spec"]): c["code"] for c in of(observed, "code")}
    second = {(c["kernel"], c["spec"]): c["code"] for c in of(enforced, "code")}
    assert first == second


def test_another_fp_fusion_is_drift_that_names_the_option(observed, pins, tmp_path):
    enforced = lane(tmp_path, "enforce", str(pins), TRITON_DEFAULT_FP_FUSION="0")
    drifts = of(enforced, "problem", kind="drift")
    assert drifts
    assert all("enable_fp_fusion True → False" in drift["text"] for drift in drifts)
    assert enforced["benchmarks"] == 0


def test_other_machine_code_is_drift(observed, pins, tmp_path):
    altered = json.loads(pins.read_text())
    for kernel in altered.values():
        for entry in kernel["entries"]:
            entry["code"] = ["sha256:" + "0" * 64 for _ in entry["code"]]
    path = tmp_path / "altered.json"
    path.write_text(json.dumps(altered))
    drifts = of(lane(tmp_path, "enforce", str(path)), "problem", kind="drift")
    assert drifts
    assert all(drift["text"] == "the same config, other machine code" for drift in drifts)


def test_the_same_kernel_lower_in_another_file_has_the_same_code(observed, tmp_path):
    moved = tmp_path / "moved_kernels.py"
    moved.write_text("# moved\n" * 9 + rig.KERNELS.read_text(encoding="utf-8"), encoding="utf-8")
    elsewhere = lane(tmp_path, "observe", "", str(tmp_path))
    first = {(c["spec"], c["code"]) for c in of(observed, "code")}
    second = {(c["spec"], c["code"]) for c in of(elsewhere, "code")}
    assert first & second == first
    sources = {c["source"] for c in of(observed, "choice")}
    assert {c["source"] for c in of(elsewhere, "choice")} == sources


def test_anything_but_a_64_bit_elf_is_refused():
    with pytest.raises(ValueError, match="ELF"):
        code.code_sections_digest(b"\x7fELF\x01" + bytes(100))
