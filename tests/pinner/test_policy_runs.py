"""Policy profiles in real processes: what they set is in force, and what goes against them is told.

Torch runs on the CPU here: of the switches for a GPU it is shown that torch has the value.
"""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pinner.inside.choosers.inductor import switches as inductor_switches
from pinner.inside.policy_switches import INDUCTOR, SWITCHES
from pinner.launch import merging, session_dir
from pinner.lockfile.codec import read_lock, write_lock
from pinner.lockfile.schema import Lock
from pinner.policy import apply
from pinner.policy.profiles import load
from tests import lanes, locks
from tests.command_rig import Pinner, Said, python
from tests.pinner.test_profiles import locked
from tests.session_rig import SessionRig

RUN = python("policy_run.py")
PLAIN = python("plain.py")
RULES = {rule.name: rule for rule in load("deterministic").rules if not rule.phantom}
WARNING = "torch.use_deterministic_algorithms(True, warn_only=True)"
FLIPPED = {
    "torch.use_deterministic_algorithms": WARNING,
    "torch.backends.cudnn.benchmark": "torch.backends.cudnn.benchmark = True",
    "torch.backends.cudnn.deterministic": "torch.backends.cudnn.deterministic = False",
    "torch.backends.cudnn.allow_tf32": "torch.backends.cudnn.conv.fp32_precision = 'tf32'",
    "torch.backends.cuda.matmul.allow_tf32": "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, True)"
    ),
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True"
    ),
    "torch.backends.cuda.matmul.allow_fp16_accumulation": (
        "torch.backends.cuda.matmul.allow_fp16_accumulation = True"
    ),
    "torch.utils.deterministic.fill_uninitialized_memory": (
        "torch.utils.deterministic.fill_uninitialized_memory = False"
    ),
    INDUCTOR: "import torch._inductor.config as c; c.deterministic = False",
}
TF32 = "torch.backends.cuda.matmul.allow_tf32 = True"


@pytest.fixture(scope="module", autouse=True)
def _nobody_set_anything() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, rule in RULES.items():
            if rule.kind == "variable":
                patch.delenv(name, raising=False)
        yield


@dataclass(frozen=True)
class Recorded:
    """A recording of `policy_run.py` under the profile, and the lock that it made."""

    pinner: Pinner
    said: Said
    lock: Lock


def printed(text: str) -> list[dict[str, Any]]:
    """What each run of `policy_run.py` printed."""
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"torch')]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    pinner = Pinner(tmp_path_factory.mktemp("recorded") / "here")
    pinner.folder.mkdir()
    own = ("--profile", "deterministic", "--", *RUN)
    if lanes.soak():
        said = pinner("record", *own)
    else:  # the draft of the observed run alone; enforcing it shows what validating runs would
        said = pinner("record", "--phase", "observe", "--dir", "shared", *own)
        assert pinner("merge", "shared/observe", "-o", "pinner.lock.toml").code == 0
    assert said.code == 0, said.err
    return Recorded(pinner, said, read_lock(pinner.path("pinner.lock.toml")))


@pytest.fixture
def pinner(tmp_path: Path) -> Pinner:
    return Pinner(tmp_path)


class TestRecorded:
    def test_every_switch_is_in_force_in_every_run(self, recorded: Recorded) -> None:
        runs = printed(recorded.said.out)
        assert len(runs) == (3 if lanes.soak() else 1)
        for run in runs:
            for name, switch in RULES.items():
                if switch.kind == "switch":
                    assert run[name] == (True if name == INDUCTOR else switch.default), name
            assert (run["empty is filled"], run["put_"]) == (True, "raises")

    def test_the_lock_holds_the_value_of_each_rule(self, recorded: Recorded) -> None:
        policy = recorded.lock.policy
        assert policy["profile"] == "deterministic"
        assert policy["profile_digest"] == load("deterministic").digest
        assert policy["profile_at_start"] == ["PYTHONHASHSEED"]
        values = apply.values_of(policy)
        wanted = {name: rule.default for name, rule in RULES.items()}
        assert values == {**wanted, INDUCTOR: True}

    def test_what_was_set_is_a_fact_of_the_stack_too(self, recorded: Recorded) -> None:
        assert recorded.lock.stack.hard["env:CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"

    def test_what_is_set_is_told_first(self, recorded: Recorded) -> None:
        first = recorded.said.lines[0]
        assert first.startswith("profile deterministic: sets PYTHONHASHSEED=0, CUBLAS_WORKSPACE_")

    @lanes.long_form
    def test_torch_alone_has_other_values(self, pinner: Pinner) -> None:
        """Without this the test above could not fail."""
        done = subprocess.run(
            RUN, env=pinner.environ(), capture_output=True, text=True, check=True, cwd=pinner.folder
        )
        (run,) = printed(done.stdout)
        assert (run["empty is filled"], run["put_"]) == (False, "runs")
        switches = {n: r.default for n, r in RULES.items() if r.kind == "switch"}
        assert run[INDUCTOR] is None  # its options are not imported with torch
        same = {
            name for name, value in switches.items() if value is not None and run[name] == value
        }
        assert same == {
            "torch.backends.cudnn.benchmark",
            "torch.backends.cuda.matmul.allow_fp16_accumulation",
            "torch.backends.cuda.matmul.allow_tf32",
            "torch.utils.deterministic.fill_uninitialized_memory",  # of no effect by itself
        }


class TestEnforced:
    def test_the_locks_values_are_set_and_held(self, recorded: Recorded) -> None:
        said = recorded.pinner("enforce", "--allow-draft", "--", *RUN)
        assert said.code == 0, said.err
        assert printed(said.out) == printed(recorded.said.out)[:1]
        assert f"profile: {len(RULES)} settings held" in said.lines

    def test_other_values_are_refused_together_before_anything_starts(
        self, recorded: Recorded
    ) -> None:
        wrong = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "TRITON_F32_DEFAULT": "ieee"}
        said = recorded.pinner("enforce", "--allow-draft", "--", *RUN, **wrong)
        assert (said.code, said.out) == (96, "")
        assert said.lines == [
            "CUBLAS_WORKSPACE_CONFIG=:16:8: the lock was recorded under the profile deterministic "
            "with CUBLAS_WORKSPACE_CONFIG = :4096:8; unset it, or record again",
            "TRITON_F32_DEFAULT=ieee: the lock was recorded under the profile deterministic "
            "with TRITON_F32_DEFAULT not set; unset it, or record again",
        ]

    def test_what_the_program_sets_later_breaks_the_pins(self, recorded: Recorded) -> None:
        said = recorded.pinner("enforce", "--allow-draft", "--", *RUN, DO=f"{WARNING}; {TF32}")
        assert said.code == 97
        assert "2 invalid" in said.text
        for name in ("torch.use_deterministic_algorithms", "torch.backends.cuda.matmul.allow_tf32"):
            assert f"profile {name} by the program" in said.text
        assert "it did not when recorded" in said.text

    def test_from_inside_a_program(self, recorded: Recorded) -> None:
        code = (
            "import pinner, os\npinner.enforce('pinner.lock.toml', allow_draft=True)\n"
            "import torch\n"
            "print(os.environ['NCCL_ALGO'], torch.are_deterministic_algorithms_enabled())\n"
        )
        path = recorded.pinner.path("inside.py")
        path.write_text(code)
        environ = recorded.pinner.environ()
        late = _python(path, recorded.pinner.folder, environ)
        assert late.code == 1
        assert "start the program with PYTHONHASHSEED=0" in late.err
        wrong = _python(path, recorded.pinner.folder, {**environ, "NCCL_ALGO": "Tree"})
        assert "NCCL_ALGO=Tree: the lock was recorded under" in wrong.err
        right = _python(path, recorded.pinner.folder, {**environ, "PYTHONHASHSEED": "0"})
        assert (right.code, right.out) == (0, "Ring True\n")


def _python(path: Path, cwd: Path, environ: dict[str, str]) -> Said:
    done = subprocess.run(
        [sys.executable, str(path)], env=environ, cwd=cwd, capture_output=True, text=True
    )
    return Said(done.returncode, done.stdout, done.stderr)


class TestRefusedAndKept:
    def test_an_environment_is_refused_before_the_first_run(self, pinner: Pinner) -> None:
        wrong = {"NCCL_ALGO": "Tree", "PYTHONHASHSEED": "random", "PTXAS_OPTIONS": "-O0"}
        said = pinner("record", "--profile", "deterministic", "--json", "--", *RUN, **wrong)
        assert (said.code, said.json["status"]) == (64, "refused")
        assert [line.split("=")[0] for line in said.lines] == ["PYTHONHASHSEED", "NCCL_ALGO"]
        assert list(pinner.folder.iterdir()) == []

    def test_a_profile_that_cannot_be_read(self, pinner: Pinner) -> None:
        pinner.path("mine.toml").write_text("version = 1\nextends = 'determined'\n")
        said = pinner("record", "--profile", "./mine.toml", "--", *RUN)
        assert said.code == 65
        assert "pinner brings: deterministic, megatron" in said.text

    def test_a_role_without_a_profile(self, pinner: Pinner) -> None:
        assert pinner("record", "--role", "trainer", "--", *RUN).code == 64

    def test_a_program_that_takes_it_back_is_not_sealed(self, pinner: Pinner) -> None:
        """And a switch that the user set by its variable is not set back."""
        variable = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
        do = {"DO": WARNING, variable: "1"}
        said = pinner("record", "--profile", "deterministic", "--json", "--", *RUN, **do)
        assert f"kept as you set it, {variable}=1" in said.text
        assert printed(said.err)[0]["torch.backends.cuda.matmul.allow_tf32"] is True
        assert (said.code, said.json["status"], said.json["lock"]) == (3, "policy", None)
        assert "set it to warn_only (it was error); the profile deterministic accepts" in said.text
        assert said.json["policy"]["sets"]["NCCL_ALGO"] == "Ring"

    def test_each_switch_that_the_program_flips_is_told(self, tmp_path: Path) -> None:
        """All rules, kept and refused, in one process; and variables that it sets too late."""
        rig = SessionRig(tmp_path / "s", policy=_settings("deterministic", PTXAS_OPTIONS="-O0"))
        assert set(FLIPPED) == set(SWITCHES)
        later = {"NCCL_ALGO": "Tree", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
        do = "\n".join([*FLIPPED.values(), f"os.environ.update({later!r})"])
        done = rig.run(RUN, DO=do, PTXAS_OPTIONS="-O0", PYTHONHASHSEED="0", **_PATHS)
        assert done.returncode == 0, done.stderr
        told = {"invalid": set(), "note": set()}
        for line in rig.lines("problem"):
            if line["chooser"] == "profile":
                told[line["kind"]].add(line["kernel"])
        kept = {n for n in FLIPPED if RULES[n].on_conflict == "keep"} | {INDUCTOR}
        assert told == {
            "invalid": (set(FLIPPED) - kept) | {"env:NCCL_ALGO"},
            "note": kept | {"env:PTXAS_OPTIONS", "env:CUBLAS_WORKSPACE_CONFIG"},
        }

    @pytest.mark.parametrize("enforcing", [False, True])
    def test_what_a_program_sets_before_torch_ends_it_there(
        self, tmp_path: Path, enforcing: bool
    ) -> None:
        rig = SessionRig(tmp_path / "s", policy=None)
        if enforcing:
            rig.enforce({"policy": locked("deterministic", {})})
            rig.settings["locked_policy"] = {}
        else:
            rig.settings["policy"] = _settings("deterministic")
        rig.write_settings()
        code = (
            "import os\nos.environ['CUBLAS_WORKSPACE_CONFIG'] = ':0:0'\n"
            "os.environ['NCCL_ALGO'] = 'Tree'\nimport torch\nprint('went on')"
        )
        done = rig.script(code, PYTHONHASHSEED="0")
        assert (done.returncode, done.stdout) == (96, "")
        (fault,) = rig.faults()
        assert "refuses 2 of the variables here" in fault["cause"]
        assert "CUBLAS_WORKSPACE_CONFIG=:0:0" in fault["cause"]
        assert "NCCL_ALGO=Tree" in fault["cause"]

    def test_a_rank_whose_ranks_agree_first_waits_with_it_until_then(self, tmp_path: Path) -> None:
        rig = SessionRig(tmp_path / "s", policy=_settings("deterministic"), agree=1)
        code = (
            "import os; os.environ['NCCL_ALGO'] = 'Tree'\n"
            "from pinner.inside import policy; policy._before_torch(); print('waits')"
        )
        done = rig.script(code, PYTHONHASHSEED="0", RANK="0", WORLD_SIZE="2", **_PATHS)
        assert (done.returncode, done.stdout) == (96, "waits\n")
        assert "refuses 1 of the variables here: NCCL_ALGO=Tree" in done.stderr

    def test_a_process_that_never_imports_torch_is_left_alone(self, tmp_path: Path) -> None:
        rig = SessionRig(tmp_path / "s", policy=_settings("deterministic"))
        done = rig.script("import os; print(os.environ['NCCL_ALGO'])", CUBLAS_WORKSPACE_CONFIG="x")
        assert (done.returncode, done.stdout) == (0, "Ring\n")

    def test_what_is_read_at_the_start_must_be_there_at_the_start(self, tmp_path: Path) -> None:
        rig = SessionRig(tmp_path / "s", policy=_settings("deterministic"))
        done = rig.script("import torch\nprint('went on')")
        assert done.returncode == 96
        assert "PYTHONHASHSEED is read when a process starts" in done.stderr


_PATHS = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def _settings(profile: str, **environ: str) -> dict[str, Any]:
    return apply.policy_of(profile, None, environ).settings()


class TestWithoutTorch:
    def test_by_phases_the_lock_holds_the_variables(self, pinner: Pinner) -> None:
        """The validating launchers take them from the draft."""
        shared = ("--dir", "shared")
        phase = ("record", "--phase")
        own = ("--profile", "deterministic")
        assert pinner(*phase, "observe", *own, *shared, "--", *PLAIN).code == 0
        for name in ("a", "b"):
            assert pinner(*phase, "validate", "--run-name", name, *shared, "--", *PLAIN).code == 0
        said = pinner(*phase, "seal", *shared)
        assert said.code == 0, said.err
        values = apply.values_of(read_lock(pinner.path("pinner.lock.toml")).policy)
        assert values == {n: r.default for n, r in RULES.items() if r.kind == "variable"}
        assert pinner("enforce", "--", *PLAIN, NCCL_ALGO="ring").code == 96
        assert pinner("merge", "shared/observe", "-o", "merged.toml").code == 0
        assert apply.values_of(read_lock(pinner.path("merged.toml")).policy) == values
        assert apply.profile_of(read_lock(pinner.path("merged.toml")).policy) == "deterministic"

    def test_sessions_under_two_policies_are_not_merged(self, tmp_path: Path) -> None:
        folders = [tmp_path / name for name in ("one", "other")]
        for folder, profile in zip(folders, ("deterministic", "miles"), strict=True):
            settings = session_dir.Settings(
                mode="observe", run="r", created="now", policy=_settings(profile)
            )
            session = session_dir.create(folder, settings)
            line = {"t": "process", "pid": 1, "host": "h", "run": "r", "argv": ["x"], "time": "now"}
            (session.ledger / "h-1.jsonl").write_text(json.dumps(line) + "\n")
        outcome = merging.merge_folders(folders, tmp_path / "out.toml", "fastest")
        assert (outcome.exit, outcome.status) == (4, "policies")


class TestEnv:
    def _made(self, pinner: Pinner, profile: str, role: Any, **environ: str) -> None:
        stack = locks.Stack({"torch": "2.13.0", "env:NCCL_ALGO": "Ring"})
        lock = locks.lock(policy=locked(profile, environ, role), stack=stack)
        write_lock(pinner.path("pinner.lock.toml"), lock)

    def test_the_locks_variables(self, pinner: Pinner) -> None:
        self._made(pinner, "miles", "trainer", NCCL_ALGO="CollnetChain")
        made = pinner("env", "--json").json
        assert made["policy"]["profile"] == "miles"
        assert (made["policy"]["role"], made["policy"]["from"]) == ("trainer", "lock")
        assert made["variables"]["NCCL_ALGO"] == "CollnetChain"
        assert made["variables"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert "NCCL_MIN_NCHANNELS" not in made["variables"]
        assert set(made["variables"]) > {"PINNER_SESSION", "PINNER_MODE", "PYTHONPATH"}
        assert pinner("env", "--json", "--role", "trainer").json["variables"].keys() == (
            made["variables"].keys()
        )
        assert "export NCCL_ALGO=CollnetChain" in pinner("env").out

    def test_a_users_own_value_goes_along(self, pinner: Pinner) -> None:
        """The processes start elsewhere, where nobody has set it."""
        self._made(pinner, "miles", "trainer")
        made = pinner("env", "--json", NCCL_ALGO="Ring").json
        assert made["variables"]["NCCL_ALGO"] == "Ring"
        assert pinner("env", "--json", NCCL_ALGO="Tree").code == 4

    def test_another_role(self, pinner: Pinner) -> None:
        self._made(pinner, "miles", "trainer")
        made = pinner("env", "--json", "--role", "rollout", NCCL_MIN_NCHANNELS="4").json
        assert made["variables"]["NCCL_ALGO"] == "allreduce:tree"
        assert made["variables"]["NCCL_MIN_NCHANNELS"] == "4"
        assert made["variables"]["NCCL_MAX_NCHANNELS"] == "8"
        states = {(row["name"], *row["roles"]): row["state"] for row in made["policy"]["rows"]}
        assert states["NCCL_ALGO", "rollout"] == "set"
        assert states["NCCL_ALGO", "trainer"] == "other role"
        session = json.loads(Path(made["session"], "session.json").read_text())
        assert session["policy"]["role"] == "rollout"
        assert not session["policy"]["told"]  # the lock's values are another role's
        assert "env:NCCL_ALGO" in session["allow"]

    def test_another_role_under_another_profile_of_that_name(self, pinner: Pinner) -> None:
        pinner.path("mine.toml").write_text('version = 1\nextends = "miles"\n')
        self._made(pinner, str(pinner.path("mine.toml")), "trainer")
        assert "expected a profile at" in pinner("env", "--role", "rollout").text
        own = ("--role", "rollout", "--profile", "./mine.toml")
        assert pinner("env", "--json", *own).json["policy"]["profile"] == "mine"
        changed = '[[rule]]\nvariable = "PTXAS_OPTIONS"\naccept = ["-O3"]\n'
        pinner.path("mine.toml").write_text(f'version = 1\nextends = "miles"\n{changed}')
        said = pinner("env", *own)
        assert said.code == 4
        assert "that the lock was recorded under, found another" in said.text

    def test_a_lock_without_a_profile(self, pinner: Pinner) -> None:
        write_lock(pinner.path("pinner.lock.toml"), locks.lock(policy={}))
        assert pinner("env", "--json").json["policy"] is None
        assert pinner("env", "--role", "trainer").code == 4


class TestTriton:
    @pytest.mark.parametrize(
        ("variable", "value", "where"),
        [
            ("TRITON_DEFAULT_FP_FUSION", "0", "language.default_fp_fusion"),
            ("TRITON_FORCE_DISABLE_FP_FUSION", "1", "language.force_disable_fp_fusion"),
            ("TRITON_F32_DEFAULT", "ieee", "language.fp32_default"),
            ("DISABLE_PTXAS_OPT", "1", "nvidia.disable_ptxas_opt"),
            ("PTXAS_OPTIONS", "-O1", "nvidia.ptxas_options"),
        ],
    )
    def test_it_reads_the_variables_of_the_rules(
        self, variable: str, value: str, where: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from triton import knobs

        group, name = where.split(".")
        assert variable in RULES
        before = getattr(getattr(knobs, group), name)
        monkeypatch.setenv(variable, value)
        assert getattr(getattr(knobs, group), name) != before

    def test_the_default_is_what_it_does_by_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from triton import knobs

        unset = knobs.language.default_fp_fusion
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", RULES["TRITON_DEFAULT_FP_FUSION"].default)
        assert knobs.language.default_fp_fusion is unset is True


class TestInductor:
    def test_the_flag_is_told_as_it_was_before_the_pins_switched_it_off(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = types.ModuleType("torch._inductor.config")
        config.deterministic = True  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "torch._inductor.config", config)
        monkeypatch.setattr(inductor_switches, "found", {})
        told = []
        lines = types.SimpleNamespace(setting=lambda name, value, held, text: told.append(name))
        inductor_switches.apply(config, None, lines)  # type: ignore[arg-type]
        assert config.deterministic is False  # type: ignore[attr-defined]
        assert told == ["deterministic"]
        assert SWITCHES[INDUCTOR].read(None) is True

    @lanes.long_form
    def test_both_values_stand_in_the_lock(self, pinner: Pinner) -> None:
        do = "torch.compile(lambda x: x.sin() + 1)(torch.ones(8))"
        said = pinner("record", "--profile", "deterministic", "--", *RUN, DO=do)
        assert said.code == 0, said.err
        policy = read_lock(pinner.path("pinner.lock.toml")).policy
        assert policy["inductor.deterministic"] is False
        assert policy[f"profile.{INDUCTOR}"] is True
        assert f"profile.{INDUCTOR} by the program" not in policy
