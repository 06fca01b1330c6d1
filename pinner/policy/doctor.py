"""Says what stands in the way of a run that repeats: facts in, findings out. Pure.

Nothing is set and nothing refused here: what a profile would set is a warning, since somebody may
run without it; what a profile or a lock would refuse is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pinner import stack
from pinner.inside import checkup
from pinner.inside.facts import CPU_SWITCHES, SWITCHES
from pinner.inside.policy_rules import accepts, shown
from pinner.lockfile.check import findings as findings_of_lock
from pinner.lockfile.ledgers import ProblemRecord, SettingRecord
from pinner.lockfile.schema import Lock

from . import apply, attention
from .contradictions import contradicting
from .features import Feature, asked_for
from .phantoms import misspelt
from .profiles import Profile, Row, judge

Severity = Literal["error", "warning", "note"]
ORDER: tuple[Severity, ...] = ("error", "warning", "note")

# Kinds of problems in a ledger that say that something was not held, or not seen.
_PROBLEMS = ("bypass", "invalid", "refused", "replay")


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    id: the kind, the same in every version. subject: a variable, a switch, a fact, a library.
    severity: "error" (a profile or a lock refuses it), "warning" (bits can change by it), "note".
    """

    id: str
    subject: str
    severity: Severity
    expected: str
    found: str
    todo: str
    source: str = ""

    @property
    def order(self) -> tuple[int, str, str]:
        return ORDER.index(self.severity), self.id, self.subject

    def text(self) -> str:
        """For people."""
        head = f"{self.severity}: {self.id}: {self.subject}"
        lines = [f"expected: {self.expected}", f"found:    {self.found}", f"do:       {self.todo}"]
        if self.source:
            lines.append(f"source:   {self.source}")
        return "\n".join([head, *(f"  {line}" for line in lines)])

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Compiler:
    """The system's C compiler. wanted: what $CC says. found: the program, "" for none."""

    wanted: str = ""
    found: str = ""


@dataclass(frozen=True)
class Seen:
    """What processes told. running: whether they ran the user's command, and not a look at a
    Python alone. facts: of the stack. commands: theirs, and the user's own."""

    running: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[SettingRecord, ...] = ()
    problems: tuple[ProblemRecord, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Examined:
    """All that the findings follow from."""

    environ: Mapping[str, str]
    profile: Profile
    role: str | None = None
    compiler: Compiler = field(default_factory=Compiler)
    seen: Seen = field(default_factory=Seen)
    lock: Lock | None = None
    features: tuple[Feature, ...] = ()


def examine(given: Examined) -> tuple[Finding, ...]:
    """Every finding, the gravest first."""
    rows = judge(given.profile, given.environ, given.role).rows
    found = [
        *_of_environment(given, rows),
        *_of_contradictions(given),
        *_of_features(given, rows),
        *_of_compiler(given.compiler),
        *_of_stack(given),
        *_of_attention(given),
        *_of_run(given),
    ]
    if given.lock is not None:
        refused = {each.subject for each in found if each.id == "env-refused"}
        of_lock = list(_of_lock(given, given.lock, refused))
        graver = {each.subject for each in of_lock if each.id == "lock-env"}
        found = [x for x in found if x.id != "env-kept" or x.subject not in graver] + of_lock
    once = {(each.id, each.subject): each for each in reversed(found)}  # ranks say the same
    return tuple(sorted(once.values(), key=lambda each: each.order))


def _of_environment(given: Examined, rows: Sequence[Row]) -> Iterator[Finding]:
    held = {} if given.lock is None else apply.variables_of(given.lock.policy)
    for row in rows:
        if row.rule.kind == "variable" and not (row.state == "set" and row.rule.name in held):
            yield from _of_row(given.profile.name, row)
    for name, meant in misspelt(given.environ, [row.rule.name for row in rows]).items():
        yield Finding(
            "env-phantom",
            name,
            "warning",
            f"a name that a library reads, such as {meant}",
            f"{name}={shown(given.environ[name])}, which pinner knows no reader of",
            f"set {meant} instead, or unset it",
        )


def _of_row(profile: str, row: Row) -> Iterator[Finding]:
    rule, value = row.rule, f"{row.rule.name}={shown(row.value)}"
    if row.state == "set":
        todo = f"set {value}, or run under `pinner record --profile {profile}`, which sets it"
        reason = f"{rule.expected} ({rule.reason})"
        yield Finding("env-missing", rule.name, "warning", reason, "not set", todo, rule.source)
    elif row.state == "refused":
        todo = "unset it, set what is accepted, or accept it in a profile of your own"
        reason = f"{rule.expected} ({rule.reason})"
        yield Finding("env-refused", rule.name, "error", reason, value, todo, rule.source)
    elif row.state == "kept":
        todo = "unset it, unless you mean it: the profile keeps it and says so"
        reason = f"{rule.expected} ({rule.reason})"
        yield Finding("env-kept", rule.name, "warning", reason, value, todo, rule.source)
    elif row.state == "phantom":
        text = f"{value}, which no library reads"
        yield Finding(
            "env-phantom", rule.name, "warning", "not set", text, rule.reason, rule.source
        )


def _of_contradictions(given: Examined) -> Iterator[Finding]:
    for each in contradicting(given.environ):
        found = " ".join(f"{name}={shown(given.environ.get(name))}" for name in each.names)
        subject = " and ".join(each.names)
        text = f"variables that agree: {each.reason}"
        yield Finding("env-contradiction", subject, "error", text, found, each.todo, each.source)


def _of_features(given: Examined, rows: Sequence[Row]) -> Iterator[Finding]:
    """A value that the profile refuses or keeps is told as that."""
    told = {row.rule.name for row in rows if row.state in ("refused", "kept")}
    environ = {name: value for name, value in given.environ.items() if name not in told}
    for feature, found in asked_for(given.features, given.seen.commands, environ):
        text = f"a run without it: {feature.reason}"
        yield Finding(
            "feature-nondeterministic",
            feature.name,
            "warning",
            text,
            found,
            feature.todo,
            feature.source,
        )


def _of_compiler(compiler: Compiler) -> Iterator[Finding]:
    if compiler.found:
        return
    found = (
        f"CC={compiler.wanted}, no such program" if compiler.wanted else "none of cc, gcc, clang"
    )
    yield Finding(
        "compiler-missing",
        "C compiler",
        "warning",
        "a C compiler, which builds the layer that sees and holds cuBLASLt's choices on first use",
        found,
        "install gcc, or name a compiler in CC; with --cublaslt off these choices are not held",
    )


def _of_stack(given: Examined) -> Iterator[Finding]:
    facts = given.seen.facts
    if not facts:
        yield Finding(
            "stack-unseen",
            "stack",
            "warning",
            "a process that tells of its stack",
            "none did",
            "give the workload's own command after `--`",
        )
    elif "torch" not in facts:
        yield Finding(
            "stack-no-torch",
            "torch",
            "warning",
            "an installed torch",
            f"none, in Python {facts.get('python', 'of an unknown version')}",
            "run the doctor with the workload's Python, or give its command after `--`",
        )


def _of_attention(given: Examined) -> Iterator[Finding]:
    for setting in _checked(given.seen, checkup.BACKEND):
        name = setting.name.removeprefix(checkup.BACKEND)
        backend = attention.flash(name, _functions(setting.value))
        if backend.verdict == "not":
            yield Finding(
                "attention-refused",
                name,
                "error",
                "functions that take `deterministic`",
                backend.reason,
                "install flash-attn 2.4.1 or later, or take another backend",
                backend.source,
            )
        elif backend.verdict == "unknown":
            yield Finding(
                "attention-unknown",
                name,
                "note",
                "functions whose source can be read",
                backend.reason,
                "compare two runs with `pinner verify`",
                backend.source,
            )
    for distribution, backend in attention.installed(given.seen.facts):
        if backend.verdict in ("not", "unknown"):
            yield Finding(
                f"attention-{backend.verdict}",
                distribution,
                "note",
                "attention that is known to add in one order",
                f"{backend.name}: {backend.reason}",
                backend.todo,
                backend.source,
            )
    for setting in _checked(given.seen, checkup.OPERATIONS):
        space = setting.name.removeprefix(checkup.OPERATIONS)
        named = _texts(setting.value)
        if not attention.classified(space):
            more = f" and {len(named) - 5} more" if len(named) > 5 else ""
            yield Finding(
                "operations-unclassified",
                space,
                "note",
                "operations that torch.use_deterministic_algorithms governs, or that are known",
                ", ".join(named[:5]) + more,
                "show that they repeat: `pinner verify`, or a test of N runs with fixed inputs",
            )


def _of_run(given: Examined) -> Iterator[Finding]:
    seen = given.seen
    if not seen.running:
        return
    rules = {rule.name: rule for rule in given.profile.of(given.role)}
    for setting in _checked(seen, checkup.LATE):
        name = setting.name.removeprefix(checkup.LATE)
        read = rules[name].read if name in rules else "early"
        yield Finding(
            "env-late",
            name,
            "error",
            f"{name} set before it is read: {read}",
            f"the program set {name}={shown(setting.value)} when {setting.text}",
            "set it where the program is started, or at its top, before `import torch`",
        )
    for setting in _checked(seen, checkup.SWITCH):
        name = setting.name.removeprefix(checkup.SWITCH)
        rule = rules.get(name)
        if rule is not None and not accepts(rule.as_json(), setting.value):
            yield Finding(
                "switch-unaccepted",
                name,
                "warning",
                f"{rule.expected} ({rule.reason})",
                f"{shown(setting.value)} at the end of the run",
                f"set it in the program, or run under `pinner record --profile "
                f"{given.profile.name}`, which sets what the program leaves alone",
                rule.source,
            )
    for setting in seen.settings:
        if setting.held == "no":
            yield Finding(
                "run-unheld",
                f"{setting.chooser} {setting.name}",
                "warning",
                "a choice that a lock or a switch holds",
                f"{shown(setting.value)}: {setting.text}".rstrip(": "),
                "do as it says; `pinner audit` lists all choices of a run",
            )
    for problem in seen.problems:
        if problem.kind in _PROBLEMS:
            yield Finding(
                f"run-{problem.kind}",
                f"{problem.chooser} {problem.kernel}".strip(),
                "warning",
                "nothing that goes past pinner",
                problem.text,
                "do as it says, or leave it out of what is to repeat",
            )


def _of_lock(given: Examined, lock: Lock, refused: set[str]) -> Iterator[Finding]:
    """refused: variables that the profile refuses already."""
    if not lock.run.sealed:
        yield Finding(
            "lock-draft",
            "lock",
            "error",
            "a sealed lock",
            "a draft: no validating runs agreed on it",
            "record it again, or allow it with --allow-draft",
        )
    for text in findings_of_lock(lock)[0 if lock.run.sealed else 1 :]:
        yield Finding(
            "lock-weak", "lock", "note", "a lock that covers the run", text, "record again"
        )
    told = set(refused)
    for rule, value in apply.against(lock.policy, given.environ):
        name = rule["name"]
        told.add(name)
        if name not in refused:
            yield Finding(
                "lock-env",
                name,
                "error",
                f"{shown(rule['default'])}, as when the lock was recorded",
                f"{name}={shown(value)}",
                "unset it, or record again",
            )
    if not given.seen.facts:
        return
    for mismatch in stack.mismatches(lock.stack, _under(lock, given)):
        if mismatch.field.rpartition("env:")[2] in told:
            continue
        field_, locked, here = mismatch.row()
        todo = f"install what was locked, allow it with --allow {field_}, or record again"
        yield Finding("lock-stack", field_, "error", locked, here, todo)


def _under(lock: Lock, given: Examined) -> dict[str, Any]:
    """The facts as they would be with what enforcing sets."""
    facts = dict(given.seen.facts)
    for name, value in apply.variables_of(lock.policy).items():
        if name in SWITCHES:
            facts.setdefault(f"env:{name}", value)
        elif name in CPU_SWITCHES:
            facts.setdefault(f"cpu:env:{name}", value)
    return facts


def _checked(seen: Seen, prefix: str) -> list[SettingRecord]:
    """What the look at the processes told of one kind; of several processes, once each."""
    found = {
        (each.name, str(each.value)): each
        for each in seen.settings
        if each.chooser == checkup.CHOOSER and each.name.startswith(prefix)
    }
    return [found[key] for key in sorted(found)]


def _functions(value: Any) -> dict[str, bool]:
    return {str(name): bool(takes) for name, takes in value}


def _texts(value: Any) -> Sequence[str]:
    return [str(each) for each in value]
