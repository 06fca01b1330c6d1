"""The taps of Megatron and torchtitan fit the published packages, and see their metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinner.inside.evidence.digest import digest
from pinner.launch.taps import read_taps
from tests.fakes.libraries import (
    LIBRARIES,
    MEGATRON,
    TORCHTITAN,
    Library,
    published,
    signature,
    write_stand_in,
)
from tests.session_rig import SessionRig

# How the training loops of the two libraries call what is tapped: two steps of two micro-batches.
MEGATRON_LOOP = """
from megatron.core.optimizer.clip_grads import get_grad_norm_fp32
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel.schedules import forward_step_calc_loss
scheduler = OptimizerParamScheduler()
for step in range(2):
    for micro in range(2):
        forward_step_calc_loss(
            None, step + micro, None, None, None, False, 2, [], 1, is_last_stage=True
        )
    get_grad_norm_fp32([step], grad_stats_parallel_group=None)
    for group in ({"lr": 0.5}, {"lr": 0.25}):
        scheduler.get_lr(group)
"""
MEGATRON_RETURNS = {
    "forward_step_calc_loss": "output_tensor * 0.5, 7",
    "get_grad_norm_fp32": "grads_for_norm[0] + 0.125",
    "OptimizerParamScheduler.get_lr": "param_group['lr']",
}
TORCHTITAN_LOOP = """
import torchtitan.distributed.utils as dist_utils
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer.lr_scheduler import LRSchedulersContainer
from torchtitan.trainer import Trainer
trainer, processor, schedulers = Trainer(), MetricsProcessor(), LRSchedulersContainer()
for step in range(2):
    schedulers.get_metrics()
    for micro in range(2):
        trainer.forward_backward_step(input_dict={}, labels=step + micro, global_valid_tokens=1)
    dist_utils.clip_grad_norm_([step], 1.0, foreach=True, pp_mesh=None, ep_enabled=False)
    processor.log(step, step + 0.25, step + 0.75, 1.0, extra_metrics={})
"""
TORCHTITAN_RETURNS = {
    "Trainer.forward_backward_step": "labels * 0.5",
    "MetricsProcessor.log": "None",
    "clip_grad_norm_": "parameters[0] + 0.125",
    "LRSchedulersContainer.get_metrics": "{'lr/AdamW': 0.5}",
}


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.tap)
class TestSignatures:
    def test_every_tap_names_a_recorded_function(self, library: Library) -> None:
        named = {(tap["module"], tap["function"]) for tap in read_taps([library.tap])}
        assert named == set(library.signatures)

    def test_an_argument_that_is_tapped_is_one(self, library: Library) -> None:
        for tap in read_taps([library.tap]):
            parameters = library.signatures[tap["module"], tap["function"]]
            if tap.get("value", "return") != "return":
                assert tap["value"]["argument"] in parameters.replace("=", ",").split(", ")

    def test_are_those_of_the_published_package(self, library: Library) -> None:
        sources = published(library)
        if sources is None:
            pytest.skip(f"needs {library.package}: installed, or a wheel in ${library.variable}")
        found = {
            (module, function): signature(sources[module], function)
            for module, function in library.signatures
        }
        assert found == dict(library.signatures), f"recorded from {library.version}"


def streams(rig: SessionRig) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in rig.lines("evidence"):
        found.setdefault(line["stream"], []).append(line["digest"])
    return found


def of(*values: object) -> list[str]:
    return [digest(value)[0] for value in values]


def run(tmp_path: Path, library: Library, loop: str, returns: dict[str, str]) -> SessionRig:
    rig = SessionRig(tmp_path / "session", taps=[dict(tap) for tap in read_taps([library.tap])])
    write_stand_in(library, rig.folder, returns)
    done = rig.script(loop)
    assert done.returncode == 0, done.stderr
    assert "no evidence" not in done.stderr
    return rig


def test_megatrons_metrics_are_seen(tmp_path: Path) -> None:
    rig = run(tmp_path, MEGATRON, MEGATRON_LOOP, MEGATRON_RETURNS)
    assert streams(rig) == {
        "megatron/loss": of(0.0, 0.5, 0.5, 1.0),
        "megatron/gradient_norm": of(0.125, 1.125),
        "megatron/learning_rate": of(0.5, 0.25, 0.5, 0.25),
    }


def test_torchtitans_metrics_are_seen(tmp_path: Path) -> None:
    rig = run(tmp_path, TORCHTITAN, TORCHTITAN_LOOP, TORCHTITAN_RETURNS)
    assert streams(rig) == {
        "torchtitan/learning_rates": of({"lr/AdamW": 0.5}, {"lr/AdamW": 0.5}),
        "torchtitan/loss": of(0.0, 0.5, 0.5, 1.0),
        "torchtitan/gradient_norm": of(0.125, 1.125),
        "torchtitan/global_avg_loss": of(0.25, 1.25),
    }


class TestReadingAPackage:
    def test_a_function_that_is_gone_has_no_signature(self) -> None:
        assert signature("def other(): pass", "wanted") is None
        assert signature("class A:\n    x = 1", "A.method") is None
        assert signature("class A: pass", "A") is None

    def test_annotations_do_not_matter_and_defaults_do(self) -> None:
        text = "class A:\n    def f(self, a: int, *, b: 'x' = 2, **c: str) -> int: pass"
        assert signature(text, "A.f") == "self, a, *, b=2, **c"

    @pytest.mark.parametrize("form", ["folder", "wheel", "sdist"])
    def test_of_each_form(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
        import tarfile
        import zipfile

        folder = tmp_path / "tree"
        write_stand_in(TORCHTITAN, folder, TORCHTITAN_RETURNS)
        package = {"folder": folder, "wheel": tmp_path / "x.whl", "sdist": tmp_path / "x.tar.gz"}
        with zipfile.ZipFile(package["wheel"], "w") as wheel:
            for path in folder.rglob("*.py"):
                wheel.write(path, path.relative_to(folder))
        with tarfile.open(package["sdist"], "w:gz") as sdist:
            sdist.add(folder, "torchtitan-0.3.0")
        monkeypatch.setenv(TORCHTITAN.variable, str(package[form]))
        sources = published(TORCHTITAN)
        assert sources is not None
        for (module, function), expected in TORCHTITAN.signatures.items():
            assert signature(sources[module], function) == expected
