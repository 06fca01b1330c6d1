"""The doctor lists every planted fault and nothing else: over facts, and in real runs."""

from __future__ import annotations

import itertools
import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pinner import stack
from pinner.inside import checkup
from pinner.inside.facts import SWITCHES
from pinner.launch import doctoring
from pinner.lockfile.codec import write_lock
from pinner.lockfile.ledgers import ProblemRecord, SettingRecord
from pinner.lockfile.schema import Stack
from pinner.policy import contradictions, doctor, features, phantoms, profiles
from pinner.policy.doctor import Compiler, Examined, Finding, Seen
from pinner.policy.rules import READ
from tests import locks
from tests.command_rig import Pinner, Said, python
from tests.pinner.test_profiles import locked

PROFILE = profiles.load("deterministic")
HEALTHY = {
    rule.name: rule.default for rule in PROFILE.rules if rule.kind == "variable" and rule.default
}
FACTS = {"torch": "2.13.0", "triton": "3.9.0", "python": "3.11.7"}
WITHOUT = Path(__file__).parents[1] / "fakes" / "flash_attn_without"

Found = set[tuple[str, str]]


def checked(name: str, value: Any, text: str = "") -> SettingRecord:
    return SettingRecord(checkup.CHOOSER, name, value, "recorded", text)


def healthy() -> Examined:
    """A run in which nothing is wrong, under a lock that fits."""
    policy = locked("deterministic", {**HEALTHY, "PTXAS_OPTIONS": "-O0"})
    told = {f"env:{name}": HEALTHY[name] for name in SWITCHES if name in HEALTHY}
    backends = checked(checkup.BACKEND + "flash-attn 2", [["flash_attn_func", True]])
    return Examined(
        environ=dict(HEALTHY),
        profile=PROFILE,
        compiler=Compiler(found="/usr/bin/cc"),
        features=features.load(),
        seen=Seen(True, FACTS, (backends, checked("switch torch.backends.cudnn.benchmark", False))),
        lock=replace(
            locks.lock(locks.entry(alternatives=1)),
            policy=policy,
            stack=Stack({"torch": "2.13.0", "triton": "3.9.0", **told}, {"python": "3.11.7"}),
        ),
    )


@dataclass(frozen=True)
class Fault:
    """What is planted, and what the doctor is to say of it; also: where there is a lock."""

    expected: tuple[str, str]
    environ: Mapping[str, str] = field(default_factory=dict)
    without: str = ""
    settings: tuple[SettingRecord, ...] = ()
    more: Callable[[Examined], Examined] = lambda given: given
    also: tuple[tuple[str, str], ...] = ()

    def plant(self, given: Examined) -> Examined:
        environ = {k: v for k, v in given.environ.items() if k != self.without}
        seen = replace(given.seen, settings=given.seen.settings + self.settings)
        return self.more(replace(given, environ={**environ, **self.environ}, seen=seen))


def _draft(given: Examined) -> Examined:
    assert given.lock is not None
    run = replace(given.lock.run, sealed=False)
    return replace(given, lock=replace(given.lock, run=run))


def _older_lock(given: Examined) -> Examined:
    """It was recorded when the profile had no such rule, so that enforcing sets nothing."""
    assert given.lock is not None
    policy = {k: v for k, v in given.lock.policy.items() if k != f"profile.env:{FLASH}"}
    return replace(given, lock=replace(given.lock, policy=policy))


def _other_torch(given: Examined) -> Examined:
    return replace(given, seen=replace(given.seen, facts={**given.seen.facts, "torch": "2.12.0"}))


def _overlap(given: Examined) -> Examined:
    commands = (("torchrun", "train.py", "--tp-comm-overlap"),)
    return replace(given, seen=replace(given.seen, commands=commands))


def _bypass(given: Examined) -> Examined:
    text = "helion was imported past pinner"
    problem = ProblemRecord("bypass", text, "helion", "helion.runtime.kernel", None, {})
    return replace(given, seen=replace(given.seen, problems=(problem,)))


FLASH = "FLASH_ATTENTION_DETERMINISTIC"
CHANNELS = {"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "4"}
ENVIRONMENT = (
    Fault(("env-missing", FLASH), without=FLASH, more=_older_lock),
    Fault(("env-refused", "CUBLAS_WORKSPACE_CONFIG"), {"CUBLAS_WORKSPACE_CONFIG": ":0:0"}),
    Fault(("env-refused", "NCCL_ALGO"), {"NCCL_ALGO": "Tree"}),
    Fault(("env-kept", "PTXAS_OPTIONS"), {"PTXAS_OPTIONS": "-O0"}),
    Fault(("env-phantom", "NCCL_DETERMINISTIC"), {"NCCL_DETERMINISTIC": "1"}),
    Fault(("env-phantom", "CUBLASLT_WORKSPACE_SIZES"), {"CUBLASLT_WORKSPACE_SIZES": "1"}),
    Fault(
        ("env-contradiction", "NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS"),
        CHANNELS,
        also=tuple(("lock-stack", f"env:{name}") for name in CHANNELS),
    ),
    Fault(
        ("feature-nondeterministic", "NVLS"),
        {"NCCL_NVLS_ENABLE": "1"},
        also=(("lock-stack", "env:NCCL_NVLS_ENABLE"),),
    ),
)
FAULTS = (
    *ENVIRONMENT,
    Fault(("lock-env", "TRITON_F32_DEFAULT"), {"TRITON_F32_DEFAULT": "ieee"}),
    Fault(("compiler-missing", "C compiler"), more=lambda each: replace(each, compiler=Compiler())),
    Fault(("lock-draft", "lock"), more=_draft),
    Fault(("lock-stack", "torch"), more=_other_torch),
    Fault(("feature-nondeterministic", "tensor-parallel communication overlap"), more=_overlap),
    Fault(("run-bypass", "helion helion.runtime.kernel"), more=_bypass),
    Fault(
        ("attention-refused", "flash-attn 3"),
        settings=(checked(checkup.BACKEND + "flash-attn 3", [["flash_attn_func", False]]),),
    ),
    Fault(
        ("operations-unclassified", "acme"),
        settings=(checked(checkup.OPERATIONS + "acme", ["acme::fused"]),),
    ),
    Fault(
        ("env-late", "PYTHONHASHSEED"),
        settings=(checked(checkup.LATE + "PYTHONHASHSEED", "1", "the process had started"),),
    ),
    Fault(
        ("switch-unaccepted", "torch.backends.cudnn.deterministic"),
        settings=(checked(checkup.SWITCH + "torch.backends.cudnn.deterministic", False),),
    ),
    Fault(
        ("run-unheld", "tunableop PYTORCH_TUNABLEOP_TUNING"),
        settings=(SettingRecord("tunableop", "PYTORCH_TUNABLEOP_TUNING", "1", "no", "timed"),),
    ),
)


def said(findings: Iterable[Finding]) -> Found:
    listed = [(each.id, each.subject) for each in findings]
    assert len(set(listed)) == len(listed)
    return set(listed)


def with_facts(given: Examined) -> Examined:
    """The variables that are facts of the stack are told as a process tells them."""
    told = {f"env:{name}": given.environ[name] for name in SWITCHES if name in given.environ}
    return replace(given, seen=replace(given.seen, facts={**given.seen.facts, **told}))


def planted(faults: Iterable[Fault]) -> Examined:
    given = healthy()
    for fault in faults:
        given = fault.plant(given)
    return with_facts(given)


def diagnosed(faults: Iterable[Fault]) -> Found:
    return said(doctor.examine(planted(faults)))


def expected(faults: Iterable[Fault]) -> Found:
    return {each for fault in faults for each in (fault.expected, *fault.also)}


class TestEveryPlantedFaultAndNothingElse:
    def test_nothing_is_said_of_a_healthy_run(self) -> None:
        assert diagnosed(()) == set()

    @pytest.mark.parametrize("size", [1, 2, len(FAULTS)])
    def test_each_fault_each_pair_and_all_of_them(self, size: int) -> None:
        for faults in itertools.combinations(FAULTS, size):
            assert diagnosed(faults) == expected(faults)

    def test_subsets_drawn_at_random(self) -> None:
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        draw = random.Random(seed)
        for _ in range(100):
            faults = draw.sample(FAULTS, draw.randrange(len(FAULTS) + 1))
            assert diagnosed(faults) == expected(faults)

    def test_what_several_ranks_say_is_told_once(self) -> None:
        given = planted(FAULTS)
        seen = given.seen
        ranks = replace(seen, settings=seen.settings * 4, problems=seen.problems * 4)
        assert doctor.examine(replace(given, seen=ranks)) == doctor.examine(given)

    def test_each_finding_says_what_was_expected_found_and_what_to_do(self) -> None:
        for finding in doctor.examine(planted(FAULTS)):
            assert all((finding.expected, finding.found, finding.todo))
            lines = finding.text().splitlines()
            assert lines[0] == f"{finding.severity}: {finding.id}: {finding.subject}"
            assert any(line.startswith("  do: ") for line in lines)

    def test_the_gravest_come_first(self) -> None:
        found = [doctor.ORDER.index(each.severity) for each in doctor.examine(planted(FAULTS))]
        assert found == sorted(found)
        assert set(found) == {0, 1, 2}


class TestFindings:
    def test_what_a_lock_refuses_is_not_only_kept(self) -> None:
        fault = Fault(("lock-env", "DISABLE_PTXAS_OPT"), {"DISABLE_PTXAS_OPT": "1"})
        assert diagnosed([fault]) == {fault.expected}

    def test_what_enforcing_sets_is_not_missing(self) -> None:
        given = replace(healthy(), environ={})
        assert said(doctor.examine(given)) == set()

    def test_no_torch_is_one_finding(self) -> None:
        given = replace(healthy(), seen=Seen(False, {"python": "3.11.7"}), lock=None)
        assert said(doctor.examine(given)) == {("stack-no-torch", "torch")}

    def test_nobody_who_tells_of_the_stack_is_one_finding(self) -> None:
        given = replace(healthy(), seen=Seen(True))
        assert said(doctor.examine(given)) == {("stack-unseen", "stack")}

    def test_a_look_without_a_command_says_nothing_of_switches(self) -> None:
        seen = Seen(
            False, FACTS, (checked(checkup.SWITCH + "torch.backends.cudnn.deterministic", 0),)
        )
        assert said(doctor.examine(replace(healthy(), seen=seen))) == set()

    def test_installed_attention_that_nobody_knows_is_noted(self) -> None:
        seen = Seen(False, {**FACTS, "sageattention": "2.2.0"})
        given = replace(healthy(), seen=seen, lock=None)
        (found,) = doctor.examine(given)
        assert (found.id, found.subject, found.severity) == (
            "attention-unknown",
            "sageattention",
            "note",
        )

    @pytest.mark.parametrize(
        ("ids", "of_run", "code"),
        [
            ((), 0, 0),
            (("operations-unclassified",), 0, 0),
            (("env-missing",), 0, 1),
            (("env-missing",), 5, 5),
            (("lock-draft", "env-missing"), 5, 4),
        ],
    )
    def test_exit_codes(self, ids: tuple[str, ...], of_run: int, code: int) -> None:
        findings = tuple(
            Finding(each, "", "note" if each.startswith("operations") else "error", "", "", "")
            for each in ids
        )
        assert doctoring.exit_of(findings, of_run) == code


class TestNames:
    def test_a_name_that_is_read_is_no_phantom(self) -> None:
        """Whichever profile it is judged by; some that are near to others among them."""
        every = [profiles.load(name) for name in profiles.shipped_names()]
        named = {rule.name for profile in every for rule in profile.rules if not rule.phantom}
        named |= phantoms.KNOWN
        named |= {"NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS", "CUBLASLT_LOG_LEVEL"}
        for profile in every:
            rules = [rule.name for rule in profile.rules]
            assert phantoms.misspelt(dict.fromkeys(named, "1"), rules) == {}

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("CUBLAS_WORKSPACE_CONFG", "CUBLAS_WORKSPACE_CONFIG"),
            ("NCCL_MIN_CHANNELS", "NCCL_MIN_NCHANNELS"),
            ("nccl_algo", "NCCL_ALGO"),
            ("NVTE_ALLOW_NONDETERMINISTIC_ALGOS", "NVTE_ALLOW_NONDETERMINISTIC_ALGO"),
        ],
    )
    def test_a_letter_too_few_too_many_or_of_the_wrong_case(self, name: str, meant: str) -> None:
        assert phantoms.misspelt({name: "1"}) == {name: meant}

    def test_other_names_of_a_shell_are_left_alone(self) -> None:
        names = ("LD_LIBRARY_PATH", "NCCL_DEBUG", "NCCL_IB_HCA", "HOME", "CUDA_HOME", "TRITON_HOME")
        assert phantoms.misspelt(dict.fromkeys(names, "1")) == {}

    @pytest.mark.parametrize("each", contradictions.CONTRADICTIONS, ids=lambda each: each.names[-1])
    def test_each_contradiction_needs_all_of_its_variables(
        self, each: contradictions.Contradiction
    ) -> None:
        values = {
            "NCCL_ALGO": "CollnetDirect,NVLS",
            "NCCL_MIN_NCHANNELS": "8",
            "NCCL_MAX_NCHANNELS": "4",
            "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
            "TRITON_DEFAULT_FP_FUSION": "1",
            "TRITON_FORCE_DISABLE_FP_FUSION": "1",
        }
        environ = {name: values.get(name, "0") for name in each.names}
        assert each.holds(environ)
        for name in each.names:
            assert not each.holds({k: v for k, v in environ.items() if k != name})

    def test_an_algorithm_that_is_shut_out_is_not_asked_for(self) -> None:
        environ = {"NCCL_ALGO": "^NVLS", "NCCL_NVLS_ENABLE": "0"}
        assert contradictions.contradicting(environ) == ()


class TestWhenAVariableIsReadIsPast:
    @pytest.mark.parametrize("read", READ)
    @pytest.mark.parametrize("torch", [False, True])
    @pytest.mark.parametrize("cuda", [False, True])
    @pytest.mark.parametrize("group", [False, True])
    def test_each_moment(self, read: str, torch: bool, cuda: bool, group: bool) -> None:
        modules: dict[str, Any] = {}
        if torch:
            modules["torch"] = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: cuda))
            modules["torch.distributed"] = SimpleNamespace(is_initialized=lambda: group)
        past = {
            "process start": True,
            "torch import": torch,
            "device start": torch and cuda,
            "first matmul": torch and cuda,
            "first attention": torch and cuda,
            "process-group init": torch and group,
        }
        assert bool(checkup.passed(read, modules)) == past.get(read, False)

    def test_a_torch_that_is_only_half_imported_has_started_nothing(self) -> None:
        modules = {"torch": SimpleNamespace()}
        assert checkup.passed("torch import", modules)
        for read in ("device start", "process-group init"):
            assert not checkup.passed(read, modules)


class TestFeatures:
    SHIPPED = features.load()

    @pytest.mark.parametrize("feature", SHIPPED, ids=lambda each: each.name)
    def test_each_has_a_detector_or_is_held_by_torch(self, feature: features.Feature) -> None:
        assert bool(feature.flags or feature.variables) != bool(feature.held_by)
        for flag in feature.flags:
            for word in (flag, f"{flag}=1", f"{flag}=True"):
                ((found, by),) = features.asked_for([feature], [["train.py", word]], {})
                assert (found, by) == (feature, word)
            for word in (f"{flag}=False", f"{flag}s", f"no{flag}"):
                assert not list(features.asked_for([feature], [["train.py", word]], {}))

    def test_what_torch_holds_is_held_by_the_profile(self) -> None:
        names = {rule.name for rule in PROFILE.rules if rule.kind == "switch"}
        assert {each.held_by for each in self.SHIPPED} - {""} <= names

    @pytest.mark.parametrize(
        ("environ", "seen"),
        [
            ({"NCCL_NVLS_ENABLE": "1"}, True),
            ({"NCCL_NVLS_ENABLE": "0"}, False),
            ({"NCCL_ALGO": "allreduce:nvlstree"}, True),
            ({"NCCL_ALGO": "Ring,NVLS"}, True),
            ({"NCCL_ALGO": "^NVLS"}, False),
            ({"NCCL_ALGO": "Ring"}, False),
        ],
    )
    def test_nvls(self, environ: dict[str, str], seen: bool) -> None:
        found = [each.name for each, _ in features.asked_for(self.SHIPPED, [], environ)]
        assert found == ["NVLS"] * seen

    def test_a_value_that_the_profile_refuses_is_told_once(self) -> None:
        given = replace(healthy(), environ={**HEALTHY, "NCCL_ALGO": "NVLS"}, lock=None)
        assert said(doctor.examine(given)) == {("env-refused", "NCCL_ALGO")}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("version = 2", "expected version = 1 and tables"),
            ("version = 1\nfeature = [3]", "expected a table, found 3"),
            ("{", "expected TOML"),
            ("TABLE\nflag = []", "flag: expected one of name"),
            ("TABLE", "expected one of flags, variables, held_by"),
            ("TABLE\nflags = [1]", "flags: expected an array of words"),
            ("TABLE\nheld_by = 'torch.x'", "held_by: expected a switch"),
            ("TABLE\nvariables = { A = '(' }", "variables: A: '('"),
            ("version = 1\n[[feature]]\nname = 'a'", "reason: expected a text, found None"),
        ],
    )
    def test_a_mistake_in_the_file_is_named(self, tmp_path: Path, text: str, message: str) -> None:
        table = "version = 1\n[[feature]]\nname = 'a'\nreason = 'b'\ntodo = 'c'\nsource = 'd'"
        path = tmp_path / "features.toml"
        path.write_text(text.replace("TABLE", table))
        with pytest.raises(profiles.ProfileError) as caught:
            features.load(path)
        assert str(path) in str(caught.value)
        assert message in str(caught.value)


def listed(told: Said) -> Found:
    return {(each["id"], each["subject"]) for each in told.json["findings"]}


class TestTheCommand:
    """In real processes; of the faults a subset is drawn, the seed printed."""

    @pytest.fixture
    def pinner(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pinner:
        for name in [rule.name for rule in PROFILE.rules] + [*CHANNELS, "CC"]:
            monkeypatch.delenv(name, raising=False)
        return Pinner(tmp_path)

    def test_an_environment_and_a_compiler(self, pinner: Pinner) -> None:
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        faults = random.Random(seed).sample(ENVIRONMENT, 4)
        environ = dict(HEALTHY)
        for fault in faults:
            environ = {k: v for k, v in environ.items() if k != fault.without}
        for fault in faults:
            environ.update(fault.environ)
        told = pinner("doctor", "--json", CC="no-such-compiler", **environ)
        assert told.code == 1, told.err
        wanted = {("compiler-missing", "C compiler")} | {fault.expected for fault in faults}
        assert listed(told) == wanted
        facts = told.json["facts"]
        fits = replace(locks.lock(), policy={}, stack=stack.classify(facts))
        for facts_here, wrong in ((facts, set()), ({**facts, "torch": "0"}, {"torch"})):
            given = Examined(HEALTHY, PROFILE, seen=Seen(False, facts_here), lock=fits)
            found = {each.subject for each in doctor.examine(given) if each.id == "lock-stack"}
            assert found == wrong

    def test_a_draft_is_refused_and_a_profile_without_rules_finds_nothing_else(
        self, pinner: Pinner
    ) -> None:
        draft = replace(locks.lock(), policy={})
        draft = replace(draft, run=replace(draft.run, sealed=False))
        write_lock(pinner.path("pinner.lock.toml"), draft)
        told = pinner("doctor", "--profile", "none", PATH=str(pinner.folder), CC=sys.executable)
        assert told.code == 4, told.err
        lines = [line for line in told.out.splitlines() if not line.startswith("  ")]
        assert "error: lock-draft: lock" in lines
        assert {line.split(": ")[1] for line in lines[:-1]} == {
            "lock-draft",
            "lock-stack",
            "lock-weak",
        }
        assert lines[-1].startswith("profile none: ")

    def test_a_run(self, pinner: Pinner) -> None:
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        plants = {
            "late-hash": ("env-late", "PYTHONHASHSEED"),
            "late-nccl": ("env-late", "NCCL_ALGO"),
            "switch": ("switch-unaccepted", "torch.backends.cudnn.benchmark"),
            "operation": ("operations-unclassified", "acme"),
            "--cross-entropy-loss-fusion": ("feature-nondeterministic", "fused cross-entropy"),
            "flash": ("attention-refused", "flash-attn 2"),
        }
        names = random.Random(seed).sample(sorted(plants), 3)
        path = pinner.environ()["PYTHONPATH"]
        if "flash" in names:
            path = os.pathsep.join([path, str(WITHOUT)])
        told = pinner(
            *("doctor", "--json", "--", *python("planted.py", *names)),
            **{**HEALTHY, "PLANT": ",".join([*names, "early-cublas"]), "CODE": "3"},
            PYTHONPATH=path,
        )
        assert told.code == 5, told.err
        assert "3" in told.json["failed"]
        assert listed(told) == {plants[name] for name in names}

    def test_a_program_without_torch_takes_part_by_what_it_fingerprints(
        self, pinner: Pinner
    ) -> None:
        pinner.path("plain.py").write_text("import pinner\npinner.fingerprint('loss', 0.5)\n")
        told = pinner("doctor", "--json", "--", sys.executable, "plain.py", **HEALTHY)
        assert told.code == 0, told.err
        assert listed(told) == set()
