"""Policy profiles: what ships, what a file may say, how one extends another, how one judges."""

from __future__ import annotations

import itertools
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinner import shipped
from pinner.inside import policy as inside
from pinner.inside.policy_switches import SWITCHES
from pinner.launch.coverage import cover
from pinner.lockfile.errors import LockError
from pinner.lockfile.merge import merge_ledgers
from pinner.policy import apply, profiles
from pinner.policy.profiles import Judged, Profile, ProfileError, judge, load
from pinner.policy.rules import READ, ROLES, Rule
from tests import locks

SHIPPED = ("deterministic", "megatron", "miles", "none", "vllm-batch-invariant")
RULES = [(name, rule) for name in SHIPPED for rule in load(name).rules]


def a_wrong_value(rule: Rule) -> str:
    """A text that the rule of a variable does not accept."""
    tries = ("Tree", ":0:0", "-1", "0", "1", "yes", "")
    return next(text for text in tries if not rule.accepts(text))


def by_name(judged: Judged) -> dict[str, str]:
    return {row.rule.name: row.state for row in judged.rows if row.state != "other role"}


class TestWhatShips:
    def test_the_profiles(self) -> None:
        assert profiles.shipped_names() == SHIPPED
        assert load("none").rules == ()

    def test_taps_and_profiles_lie_side_by_side(self) -> None:
        assert shipped.profiles_dir() == shipped.taps_dir().with_name("profiles")

    @pytest.mark.parametrize(("name", "rule"), RULES, ids=lambda x: getattr(x, "name", x))
    def test_each_rule_says_why_whence_and_when_it_is_read(self, name: str, rule: Rule) -> None:
        assert rule.reason
        assert not rule.reason.endswith(".")
        assert rule.source
        assert rule.read in READ
        assert rule.phantom or rule.default is None or rule.accepts(rule.default)

    @pytest.mark.parametrize("name", SHIPPED)
    def test_an_empty_environment_is_given_every_default(self, name: str) -> None:
        for role in (None, *ROLES):
            held = load(name).of(role)
            judged = judge(load(name), {}, role)
            defaults = {r.name: r.default for r in held if r.kind == "variable" and r.default}
            assert (dict(judged.sets), judged.refusals) == (defaults, ())

    @pytest.mark.parametrize(
        ("name", "rule"),
        [(name, rule) for name, rule in RULES if rule.kind == "variable"],
        ids=lambda x: getattr(x, "name", x),
    )
    def test_each_rule_of_a_variable_has_a_violation_that_is_caught(
        self, name: str, rule: Rule
    ) -> None:
        role = rule.roles[0] if rule.roles else None
        wrong = {rule.name: "1" if rule.phantom else a_wrong_value(rule)}
        judged = judge(load(name), wrong, role)
        state = "phantom" if rule.phantom else "kept" if rule.on_conflict == "keep" else "refused"
        assert by_name(judged)[rule.name] == state
        told = judged.refusals if state == "refused" else judged.loud
        assert len(told) == 1
        assert rule.name in told[0]
        assert rule.reason in told[0]
        assert rule.name not in judged.sets

    @pytest.mark.parametrize("name", SHIPPED)
    def test_each_switch_has_a_value_that_is_not_accepted(self, name: str) -> None:
        for rule in load(name).rules:
            if rule.kind == "switch" and rule.name != "torch._inductor.config.deterministic":
                assert not all(map(rule.accepts, SWITCHES[rule.name].values)), rule.name


class TestFacts:
    """What the projects themselves accept, by example."""

    @pytest.mark.parametrize("value", [":4096:8", ":16:8"])
    def test_both_workspaces_of_cublas(self, value: str) -> None:
        judged = judge(load("megatron"), {"CUBLAS_WORKSPACE_CONFIG": value})
        assert by_name(judged)["CUBLAS_WORKSPACE_CONFIG"] == "accepted"

    @pytest.mark.parametrize(
        ("value", "accepted"),
        [
            ("Ring", True),
            ("CollnetDirect,CollnetChain", True),
            ("Ring, ^NVLS", True),
            ("Tree", False),
            ("Ring,Tree", False),
            ("allreduce:tree", False),
            ("", False),
            (",", False),
            ("ring", False),
        ],
    )
    def test_megatron_and_nccl_algo(self, value: str, accepted: bool) -> None:
        assert bool(judge(load("megatron"), {"NCCL_ALGO": value}).refusals) is not accepted

    @pytest.mark.parametrize(("seed", "accepted"), [("0", True), ("42", True), ("4x", False)])
    def test_a_pattern_is_for_the_whole_text(self, seed: str, accepted: bool) -> None:
        assert bool(judge(load("deterministic"), {"PYTHONHASHSEED": seed}).refusals) is not accepted

    def test_nccl_itself_reads_any_case(self) -> None:
        assert not judge(load("deterministic"), {"NCCL_ALGO": "ring"}).refusals

    def test_the_tree_of_vllm_is_refused_by_megatron_and_the_ring_by_vllm(self) -> None:
        vllm = judge(load("vllm-batch-invariant"), {})
        assert vllm.sets["NCCL_ALGO"] == "allreduce:tree"
        assert len(judge(load("megatron"), vllm.sets).refusals) == 1
        assert judge(load("vllm-batch-invariant"), {"NCCL_ALGO": "Ring"}).refusals

    def test_miles_has_another_algorithm_for_each_role_and_keeps_a_users(self) -> None:
        algorithms = {
            role: judge(load("miles"), {}, role).sets["NCCL_ALGO"] for role in (None, *ROLES)
        }
        assert algorithms == {None: "Ring", "trainer": "Ring", "rollout": "allreduce:tree"}
        kept = judge(load("miles"), {"NCCL_ALGO": "Tree"}, "trainer")
        assert not kept.refusals
        assert "kept as you set it, NCCL_ALGO=Tree" in kept.loud[0]

    def test_a_variable_that_nothing_reads_is_named(self) -> None:
        judged = judge(load("deterministic"), {"NCCL_DETERMINISTIC": "1"})
        assert judged.loud == (
            "NCCL_DETERMINISTIC=1 does nothing: NCCL has no such variable: set NCCL_ALGO",
        )


# --- judging, by properties ---

NAMES = ("A", "B", "C", "D")
VALUES = ("0", "1", "x", "x,y", "")


@st.composite
def rules(draw: st.DrawFn, name: str) -> Rule:
    form = draw(st.sampled_from(("accept", "tokens", "pattern")))
    forms: dict[str, Any] = {
        "accept": {"accept": tuple(draw(st.sets(st.sampled_from(VALUES), min_size=1)))},
        "tokens": {"tokens": ("x", "y"), "ignore_case": draw(st.booleans())},
        "pattern": {"pattern": "[0-9]"},
    }[form]
    rule = Rule(name, "variable", "first matmul", "why", "whence", **forms)
    defaults = [None, *filter(rule.accepts, VALUES)]
    return Rule(
        **{
            **vars(rule),
            "default": draw(st.sampled_from(defaults)),
            "on_conflict": draw(st.sampled_from(("refuse", "keep"))),
            "roles": draw(st.sampled_from(((), ("trainer",), ("rollout",)))),
        }
    )


@st.composite
def drawn_profiles(draw: st.DrawFn) -> Profile:
    names = draw(st.sets(st.sampled_from(NAMES)))
    return Profile("drawn", rules=tuple(draw(rules(name)) for name in sorted(names)))


environments = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES))
roles = st.sampled_from((None, *ROLES))


@given(drawn_profiles(), environments, roles)
def test_no_value_of_a_user_is_ever_changed(
    profile: Profile, environ: dict[str, str], role: str | None
) -> None:
    before = dict(environ)
    judged = judge(profile, environ, role)
    assert environ == before
    assert not set(judged.sets) & set(environ)


@given(drawn_profiles(), environments, roles)
def test_judging_what_was_set_changes_nothing_more(
    profile: Profile, environ: dict[str, str], role: str | None
) -> None:
    first = judge(profile, environ, role)
    again = judge(profile, {**environ, **first.sets}, role)
    assert (again.sets if not first.refusals else {}) == {}
    assert again.refusals == first.refusals


@given(drawn_profiles(), environments, roles)
def test_all_refusals_are_told_at_once_and_nothing_is_set_beside_them(
    profile: Profile, environ: dict[str, str], role: str | None
) -> None:
    judged = judge(profile, environ, role)
    wrong = [
        rule.name
        for rule in profile.rules
        if rule.for_role(role)
        and rule.on_conflict == "refuse"
        and rule.name in environ
        and not rule.accepts(environ[rule.name])
    ]
    assert [text.split("=")[0] for text in judged.refusals] == wrong
    if wrong:
        assert judged.sets == {}


@given(drawn_profiles(), environments, roles)
def test_each_rule_has_one_row_and_what_is_wrong_is_loud(
    profile: Profile, environ: dict[str, str], role: str | None
) -> None:
    judged = judge(profile, environ, role)
    assert [row.rule for row in judged.rows] == list(profile.rules)
    for row in judged.rows:
        value = environ.get(row.rule.name)
        assert row.loud == (row.rule.for_role(role) and not row.rule.accepts(value))


# --- files ---

RULE = """
[[rule]]
variable = "NCCL_PROTO"
accept = ["Simple", "LL"]
default = "Simple"
read = "process-group init"
reason = "why"
source = "whence"
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


class TestExtending:
    def test_what_a_rule_leaves_out_stays(self, tmp_path: Path) -> None:
        text = 'version = 1\nextends = "deterministic"\n[[rule]]\nvariable = "NCCL_ALGO"\n'
        mine = load(write(tmp_path, text + 'tokens = ["Ring", "Tree"]\nreason = "ours"\n'))
        theirs = {rule.name: rule for rule in load("deterministic").rules}
        assert mine.extends == ("deterministic",)
        for rule in mine.rules:
            if rule.name != "NCCL_ALGO":
                assert rule == theirs[rule.name]
                continue
            was = theirs["NCCL_ALGO"]
            assert (rule.tokens, rule.reason, rule.origin) == (("Ring", "Tree"), "ours", "mine")
            assert (rule.default, rule.read, rule.source) == (was.default, was.read, was.source)
            assert rule.ignore_case is False  # it belongs to the form that was replaced
        assert not judge(mine, {"NCCL_ALGO": "Tree"}).refusals

    def test_a_rule_is_added_at_the_end(self, tmp_path: Path) -> None:
        mine = load(write(tmp_path, f'version = 1\nextends = "none"\n{RULE}'))
        assert [rule.name for rule in mine.rules] == ["NCCL_PROTO"]

    def test_files_extend_files_beside_them(self, tmp_path: Path) -> None:
        write(tmp_path, f"version = 1\n{RULE}", "base.toml")
        (tmp_path / "sub").mkdir()
        text = 'version = 1\nextends = "../base.toml"\n'
        mine = load(write(tmp_path / "sub", text, "mine.toml"))
        assert [rule.origin for rule in mine.rules] == ["base"]

    def test_another_form_of_acceptance_replaces_the_old_one(self, tmp_path: Path) -> None:
        text = 'version = 1\nextends = "deterministic"\n[[rule]]\nvariable = "NCCL_ALGO"\n'
        mine = load(write(tmp_path, text + 'accept = ["Ring"]\n'))
        rule = next(rule for rule in mine.rules if rule.name == "NCCL_ALGO")
        assert (rule.accept, rule.tokens) == (("Ring",), ())

    def test_on_conflict_of_a_file_is_for_its_own_rules(self, tmp_path: Path) -> None:
        text = f'version = 1\nextends = "deterministic"\non_conflict = "keep"\n{RULE}'
        found = {rule.name: rule.on_conflict for rule in load(write(tmp_path, text)).rules}
        assert (found["NCCL_PROTO"], found["NCCL_ALGO"]) == ("keep", "refuse")

    def test_a_rule_for_a_role_stands_before_the_one_for_every_role(self, tmp_path: Path) -> None:
        write(tmp_path, f"version = 1\n{RULE}", "base.toml")
        own = RULE.replace('default = "Simple"', 'default = "LL"\nroles = ["rollout"]')
        mine = load(write(tmp_path, f'version = 1\nextends = "base.toml"\n{own}'))
        found = {role: judge(mine, {}, role).sets["NCCL_PROTO"] for role in (None, *ROLES)}
        assert found == {None: "Simple", "trainer": "Simple", "rollout": "LL"}

    def test_the_digest_is_of_what_is_asked_for(self, tmp_path: Path) -> None:
        one = load(write(tmp_path, f"version = 1\n{RULE}"))
        told = load(write(tmp_path, f"version = 1\n{RULE.replace('why', 'because')}"))
        other = load(write(tmp_path, f"version = 1\n{RULE.replace('LL', 'LL128')}"))
        assert one.digest == told.digest != other.digest

    @given(st.data())
    def test_of_every_subset_of_fields(self, data: st.DataObject) -> None:
        """Fields that are given are the new ones, all others the extended profile's."""
        base = {
            "variable": "NCCL_PROTO",
            "accept": ["Simple", "LL"],
            "default": "LL",
            "read": "first matmul",
            "reason": "why",
            "source": "whence",
            "on_conflict": "keep",
        }
        new = {
            "accept": ["LL", "LL128"],
            "default": "LL",
            "read": "kernel compile",
            "reason": "other",
            "source": "elsewhere",
            "on_conflict": "refuse",
        }
        given = data.draw(st.sets(st.sampled_from(sorted(new))))
        top = profiles.Table({}, "f", "f", "refuse")
        below = Profile("base", rules=tuple(profiles._merged(None, [base], top)))
        change = {"variable": "NCCL_PROTO", **{name: new[name] for name in given}}
        (rule,) = profiles._merged(below, [change], top)
        for name, wanted in {**base, **{name: new[name] for name in given}}.items():
            if name == "variable":
                continue
            found = getattr(rule, name)
            assert (list(found) if isinstance(found, tuple) else found) == wanted


WRONG = [
    ("", "version: expected 1, found no such field"),
    ("version = 2\n", "version: expected 1, found an integer (2)"),
    ("version = true\n", "version: expected 1, found a boolean (True)"),
    ("version = 1\nextend = 'x'\n", "extend: expected one of about, extends, on_conflict"),
    ("version = 1\nabout = 1\n", "about: expected a string, found an integer (1)"),
    ("version = 1\nextends = 'nothing'\n", "pinner brings: deterministic, megatron"),
    ("version = 1\nextends = 'mine.toml'\n", "expected a chain that ends, found mine.toml →"),
    ("version = 1\non_conflict = 'flip'\n", "on_conflict: expected one of refuse, keep, found"),
    ("version = 1\nrule = 3\n", "rule: expected tables [[rule]], found an integer (3)"),
    ("version = 1\nrule = [3]\n", "[[rule]] 1: expected a table, found an integer (3)"),
    (
        "version = 1\n[[rule]]\nreason = 'x'\n",
        "a rule of one variable or one switch, found neither",
    ),
    ("version = 1\n[[rule]]\nvariable = 'A B'\n", "expected the name of an environment variable"),
    ("version = 1\n[[rule]]\nvariable = 3\n", "variable: expected a name, found an integer (3)"),
    (
        "version = 1\n[[rule]]\nswitch = 'torch.backends.cudnn.benchmarks'\n",
        "did you mean torch.backends.cudnn.benchmark?",
    ),
    ("version = 1\n[" + "x = \n", "expected TOML, found"),
]
CHANGES = [
    ('reason = "why"', "", "reason: expected a string, found no such field"),
    ('source = "whence"', "", "source: expected a string, found no such field"),
    ('read = "process-group init"', "", "read: expected a string, found no such field"),
    ('read = "process-group init"', 'read = "later"', "read: expected one of process start"),
    ('reason = "why"', "reason = 1", "reason: expected a string, found an integer (1)"),
    ('reason = "why"', 'reason = " "', "reason: expected a string, found a string (' ')"),
    ('default = "Simple"', 'default = "Tree"', "default: expected Simple or LL, found Tree"),
    ('default = "Simple"', "default = 1", "default: expected a string, a boolean, or an array"),
    ('default = "Simple"', "default = true", "expected strings, as the values of variables are"),
    ('accept = ["Simple", "LL"]', "accept = []", "an array with something in it"),
    (
        'accept = ["Simple", "LL"]',
        "",
        "accept: expected one of accept, tokens, pattern, found none",
    ),
    ('accept = ["Simple", "LL"]', 'accept = "Simple"', "expected an array with something in it"),
    ('default = "Simple"', 'pattern = "x"', "found accept and pattern"),
    ('accept = ["Simple", "LL"]', 'pattern = "("', "pattern: expected a regular expression"),
    ('accept = ["Simple", "LL"]', 'tokens = ["a,b"]', "tokens: expected strings without commas"),
    ('default = "Simple"', 'roles = ["judge"]', "roles: expected some of trainer, rollout"),
    ('default = "Simple"', 'given_by = "X"', "given_by: expected it in the rule of a switch"),
    ('default = "Simple"', "phantom = true", "phantom: expected a variable, with nothing accepted"),
    ('default = "Simple"', 'defaults = "x"', "found an unknown field (did you mean default?)"),
]


class TestWhatIsRefused:
    @pytest.mark.parametrize(("text", "message"), WRONG)
    def test_a_file(self, text: str, message: str, tmp_path: Path) -> None:
        path = write(tmp_path, text)
        with pytest.raises(ProfileError) as caught:
            load(path)
        assert message in str(caught.value)
        assert ".toml" in str(caught.value)

    @pytest.mark.parametrize(("old", "new", "message"), CHANGES)
    def test_a_rule(self, old: str, new: str, message: str, tmp_path: Path) -> None:
        assert old in RULE
        path = write(tmp_path, "version = 1\n" + RULE.replace(old, new))
        with pytest.raises(ProfileError) as caught:
            load(path)
        assert message in str(caught.value)
        assert f"{path}: [[rule]] 1 NCCL_PROTO: " in str(caught.value)

    def test_a_default_that_was_inherited_and_is_no_longer_accepted(self, tmp_path: Path) -> None:
        text = 'version = 1\nextends = "deterministic"\n[[rule]]\nvariable = "NCCL_ALGO"\n'
        with pytest.raises(ProfileError, match=r"default: expected Tree, found Ring \(inherited\)"):
            load(write(tmp_path, text + 'accept = ["Tree"]\n'))

    def test_two_rules_for_one_role(self, tmp_path: Path) -> None:
        both = RULE.replace("read =", 'roles = ["trainer", "rollout"]\nread =')
        one = RULE.replace("read =", 'roles = ["trainer"]\nread =')
        for pair in ((RULE, RULE), (both, one)):
            with pytest.raises(ProfileError, match="roles: expected one rule for a role"):
                load(write(tmp_path, "version = 1\n" + "".join(pair)))
        load(write(tmp_path, "version = 1\n" + RULE + one))

    def test_two_changes_of_one_rule(self, tmp_path: Path) -> None:
        text = 'version = 1\nextends = "deterministic"\n'
        change = '[[rule]]\nvariable = "NCCL_ALGO"\non_conflict = "keep"\n'
        load(write(tmp_path, text + change))
        with pytest.raises(ProfileError, match="NCCL_ALGO: roles: expected one rule for a role"):
            load(write(tmp_path, text + change + change))

    def test_a_change_of_a_rule_that_is_there_for_several_roles(self, tmp_path: Path) -> None:
        text = 'version = 1\nextends = "miles"\n[[rule]]\nvariable = "NCCL_ALGO"\n'
        with pytest.raises(ProfileError, match="expected the roles of the rule to change"):
            load(write(tmp_path, text + 'on_conflict = "refuse"\n'))
        mine = load(write(tmp_path, text + 'roles = ["trainer"]\non_conflict = "refuse"\n'))
        assert judge(mine, {"NCCL_ALGO": "Tree"}, "trainer").refusals

    @pytest.mark.parametrize(
        ("accept", "message"),
        [
            ('["no"]', "accept: expected False or True, found a string ('no')"),
            ("[1]", "accept: expected False or True, found an integer (1)"),
            ("[[false, false]]", "accept: expected False or True, found an array"),
        ],
    )
    def test_a_value_that_a_switch_cannot_have(
        self, accept: str, message: str, tmp_path: Path
    ) -> None:
        rule = RULE.replace('variable = "NCCL_PROTO"', 'switch = "torch.backends.cudnn.benchmark"')
        rule = rule.replace('["Simple", "LL"]', accept).replace('default = "Simple"\n', "")
        with pytest.raises(ProfileError) as caught:
            load(write(tmp_path, f"version = 1\n{rule}"))
        assert message in str(caught.value)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ProfileError, match="a file of your own is named with"):
            load("determinstic")
        with pytest.raises(ProfileError, match="cannot read the profile"):
            load(f"{tmp_path}/")


# --- the lock ---


def locked(profile: str, environ: Mapping[str, str], role: Any = None) -> dict[str, Any]:
    """`[policy]` as a recording in this environment would make it; switches as they were set."""
    policy = apply.policy_of(profile, role, environ)
    settings = policy.settings()
    values: dict[str, Any] = {}
    for rule in settings["rules"]:
        if rule["kind"] == "variable":
            value = {**policy.variables}.get(rule["name"], {"none": True})
            values[f"profile.env:{rule['name']}"] = value
        elif rule["default"] is not None:
            values[f"profile.{rule['name']}"] = rule["default"]
    return {**apply.for_lock(settings), **values, "taps": ["torch"]}


class TestInALock:
    def test_every_value_comes_back_and_nothing_else(self) -> None:
        policy = locked("deterministic", {"CUBLAS_WORKSPACE_CONFIG": ":16:8"})
        policy["profile.torch.backends.cudnn.allow_tf32 by the program"] = True
        values = apply.values_of(policy)
        assert values["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
        assert values["MAMBA_DETERMINISTIC"] is None
        assert values["torch.use_deterministic_algorithms"] == "error"
        assert values["torch.backends.cudnn.allow_tf32"] is False
        assert "taps" not in values
        assert apply.variables_of(policy)["PYTHONHASHSEED"] == "0"

    def test_another_value_is_refused_and_one_that_nobody_set_is_not(self) -> None:
        policy = locked("deterministic", {"CUBLAS_WORKSPACE_CONFIG": ":16:8"})
        for environ, wrong in (
            ({}, []),
            ({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, []),
            (
                {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TRITON_F32_DEFAULT": "ieee"},
                ["CUBLAS_WORKSPACE_CONFIG", "TRITON_F32_DEFAULT"],
            ),
        ):
            found = apply.differing(policy, environ, ())
            assert sorted(text.split("=")[0] for text in found) == wrong
        allow = ["env:CUBLAS_*"]
        assert not apply.differing(policy, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, allow)

    def test_processes_of_one_run_may_have_several_values_of_a_variable(self) -> None:
        """The first rank's is the one to set; all are accepted; a switch has one value."""
        name, switch = "env:NCCL_ALGO", "torch.backends.cudnn.benchmark"
        own = {"chooser": "profile", "held": "set"}
        ledgers = [
            locks.ledger(
                locks.setting_line(name, value=algorithm, **own),
                locks.setting_line(switch, value=rank == 2, **own),
                rank=rank,
            )
            for rank, algorithm in enumerate(("Ring", "allreduce:tree", "Ring"))
        ]
        policy = merge_ledgers(ledgers).policy
        assert policy[f"profile.{name}"] == ["Ring", "allreduce:tree"]
        assert policy[f"profile.{switch}"] is False
        assert apply.variables_of(policy)["NCCL_ALGO"] == "Ring"
        for value, refused in (("Ring", 0), ("allreduce:tree", 0), ("Tree", 1)):
            assert len(apply.differing(policy, {"NCCL_ALGO": value}, ())) == refused
        rows = cover(locks.lock(policy=policy), ledgers).settings
        assert {(row.name, row.state, row.processes) for row in rows} == {
            (name, "held", ("rank 0", "rank 2")),
            (name, "held", ("rank 1",)),
            (switch, "held", ("rank 0", "rank 1")),
            (switch, "differs", ("rank 2",)),
        }

    def test_what_is_read_when_a_process_starts_cannot_come_later(self) -> None:
        policy = locked("deterministic", {})
        assert policy[inside.AT_START] == ["PYTHONHASHSEED"]
        (text,) = apply.late(policy, {})
        assert "start the program with PYTHONHASHSEED=0" in text
        assert apply.late(policy, {"PYTHONHASHSEED": "0"}) == ()

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("profile.env:NCCL_ALGO", 3, "expected a string, as the values of variables are"),
            ("profile.env:NCCL_ALGO", "R\0", "expected a string, as the values of variables are"),
            ("profile.torch.use_deterministic_algorithms", "on", "expected off or warn_only or"),
            ("profile.torch.backends.cudnn.benchmark", 0, "expected False or True, found 0"),
            ("profile.torch.later_switch", True, "expected a switch that this pinner knows"),
            ("profile_at_start", "PYTHONHASHSEED", "expected an array of names"),
        ],
    )
    def test_what_an_edit_by_hand_broke_is_refused(
        self, name: str, value: Any, message: str
    ) -> None:
        policy = {**locked("deterministic", {}), name: value}
        for ask in (apply.variables_of, lambda each: apply.differing(each, {}, ())):
            with pytest.raises(LockError) as caught:
                ask(policy)
            assert f"[policy]: {name}: {message}" in str(caught.value)

    def test_a_lock_without_a_profile_says_nothing(self) -> None:
        assert apply.profile_of({"taps": ["torch"]}) is None
        assert apply.differing({"cublaslt.interposer": "on"}, {"NCCL_ALGO": "Tree"}, ()) == ()

    def test_an_environment_that_is_refused_makes_no_policy(self) -> None:
        wrong = {"NCCL_ALGO": "Tree", "CUBLAS_WORKSPACE_CONFIG": ":0:0"}
        with pytest.raises(apply.PolicyRefused) as caught:
            apply.policy_of("deterministic", None, wrong)
        assert len(str(caught.value).splitlines()) == 2

    def test_what_a_person_is_told_first(self) -> None:
        lines = apply.policy_of("miles", None, {"PTXAS_OPTIONS": "-O0"}).lines()
        assert lines[0].startswith("profile miles: sets PYTHONHASHSEED=0, ")
        assert "rules for trainer and rollout" in lines[1]
        assert "kept as you set it, PTXAS_OPTIONS=-O0" in lines[2]


def test_every_switch_has_values_that_differ() -> None:
    for name, switch in SWITCHES.items():
        texts = [inside.policy_rules.shown(value) for value in switch.values]
        assert len(set(texts)) == len(texts) >= 2, name
        for one, other in itertools.combinations(switch.values, 2):
            assert not inside.policy_rules.accepts({"accept": [one]}, other), name


class TestOlderTorch:
    """Attributes as torch 2.4 has them: one boolean for reductions, one for TF32, no more."""

    def _torch(self) -> Any:
        matmul = types.SimpleNamespace(allow_tf32=True, allow_bf16_reduced_precision_reduction=True)
        cuda = types.SimpleNamespace(matmul=matmul)
        cudnn = types.SimpleNamespace(allow_tf32=True, benchmark=True)
        backends = types.SimpleNamespace(cuda=cuda, cudnn=cudnn)
        return types.SimpleNamespace(backends=backends, utils=types.SimpleNamespace())

    def test_a_reduction_has_its_first_value_alone(self) -> None:
        torch, name = self._torch(), "allow_bf16_reduced_precision_reduction"
        switch = SWITCHES[f"torch.backends.cuda.matmul.{name}"]
        assert switch.read(torch) == [True]
        switch.write(torch, [False, False])
        assert getattr(torch.backends.cuda.matmul, name) is False
        rule = next(r for r in load("deterministic").rules if r.name.endswith(name))
        assert rule.accepts(switch.read(torch))
        assert not rule.accepts([True])

    def test_tf32_is_read_by_its_older_name(self) -> None:
        torch, switch = self._torch(), SWITCHES["torch.backends.cudnn.allow_tf32"]
        assert switch.read(torch) is True
        switch.write(torch, False)
        assert switch.read(torch) is False

    def test_what_is_not_there_has_no_value(self) -> None:
        for name in (
            "torch.utils.deterministic.fill_uninitialized_memory",
            "torch.backends.cuda.matmul.allow_fp16_accumulation",
            "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
        ):
            assert SWITCHES[name].read(self._torch()) is None
