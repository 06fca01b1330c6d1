"""Holds a policy profile in this process: what nobody set gets its default before it is read, what
the profile does not accept ends the process before torch, and what the program sets later is told.

A profile comes in two forms: the rules of a session (recording), or the values in `[policy]` of the
lock that is enforced, each of which then is the only one accepted. Nothing that somebody set is
ever changed. What the program sets by itself after torch was imported is looked at after the first
step of an optimizer and at the end; what it sets and takes back in between is not seen.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from . import faults, imports, ledger, pins, policy_rules, policy_switches, session, stack_rules
from .choosers.others import looks, settings

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Iterable, List, Mapping, Optional

    Rule = Dict[str, Any]

CHOOSER = "profile"
PREFIX = CHOOSER + "."
ENV = "env:"
# Beside the name of a rule: another value, that the program itself set after the import of torch.
LATER = " by the program"
PROFILE, ROLE, DIGEST = "profile", "profile_role", "profile_digest"
AT_START = "profile_at_start"
SET = "set"
START = "process start"


class _Held:
    """The rules of this process.

    judging: whether they are a profile's own, which has reasons, and not a lock's values.
    told: whether values go to the ledger, to be locked or compared with the lock's.
    began: the values in force when torch had been imported.
    """

    def __init__(self, profile: str, rules: List[Rule], judging: bool, told: bool) -> None:
        self.profile = profile
        self.rules = rules
        self.judging = judging
        self.told = told
        self.began: Dict[str, Any] = {}
        self.missing = [
            rule["name"]
            for rule in _variables(rules)
            if rule["read"] == START and rule["default"] is not None and _value(rule) is None
        ]


_held: Optional[_Held] = None


def begin(active: session.Session) -> None:
    """Set the variables that nobody set, and wait for torch. Without a profile: nothing."""
    global _held
    if active.policy is not None and active.policy.get("watch"):  # `pinner doctor`: nothing is set
        from . import checkup

        checkup.begin(active.policy["rules"])
        return
    _held = _rules_of(active)
    if _held is None:
        return
    _set_missing(_held)
    ledger.at_first_line(_tell_variables)  # of a process that does without torch
    imports.before("torch", _before_torch)
    imports.after("torch", _after_torch)


def _rules_of(active: session.Session) -> Optional[_Held]:
    asked = active.policy
    if asked is not None:
        return _Held(asked["profile"], asked["rules"], True, asked.get("told", True))
    policy = pins.load().policy
    if PROFILE not in policy:
        return None
    return _Held(policy[PROFILE], rules_of_lock(policy, active.allow), False, True)


def rules_of_lock(policy: Mapping[str, Any], allow: Iterable[str] = ()) -> List[Rule]:
    """Return one rule for each value in `[policy]` that a profile held: that value and no other.

    allow: names of facts that may differ, `env:NAME` among them

    Raises PinnerError for what cannot be held: an edit by hand, or a newer pinner's lock.
    """
    at_start, allowed = policy.get(AT_START) or [], list(allow)
    if not isinstance(at_start, list):
        raise faults.PinnerError("[policy]: %s: expected an array of names" % AT_START)
    rules = []
    for key, tagged in policy.items():
        name = key[len(PREFIX) :]
        if not key.startswith(PREFIX) or name.endswith(LATER):
            continue
        if stack_rules.named_by(name, allowed):
            continue
        variable = name.startswith(ENV)
        found = [None if isinstance(each, dict) else each for each in values_in(name, tagged)]
        for each in found:
            _check_locked(name, each)
        value = found[0]
        rule = {
            "name": name[len(ENV) :] if variable else name,
            "kind": "variable" if variable else "switch",
            "accept": [each for each in found if each is not None],
            "default": value,
            "keep": False,
            "given_by": "",
            "read": START if variable and name[len(ENV) :] in at_start else "",
            "reason": "",
        }
        rules.append(rule)
    return rules


def values_in(name: str, tagged: Any) -> List[Any]:
    """Return the values of a rule in `[policy]`, the one to set first.

    Of a variable there are several where the processes of the recording had several.
    """
    if name.startswith(ENV) and isinstance(tagged, list) and tagged:
        return tagged
    return [tagged]


def _check_locked(name: str, value: Any) -> None:
    known: Any = policy_switches.SWITCHES.get(name)
    if name.startswith(ENV):
        fits = value is None or (isinstance(value, str) and "\0" not in value)
        what = "a string, as the values of variables are"
    elif known is None:
        fits, what = False, "a switch that this pinner knows"
    else:
        every = {"accept": known.values}
        fits, what = policy_rules.accepts(every, value), policy_rules.expected(every)
    if not fits:
        raise faults.PinnerError(
            "[policy]: %s%s: expected %s, found %r; record again, or take a newer pinner"
            % (PREFIX, name, what, value)
        )


def _variables(rules: List[Rule]) -> List[Rule]:
    return [rule for rule in rules if rule["kind"] == "variable"]


def _value(rule: Rule) -> Optional[str]:
    return os.environ.get(rule["name"])


def _set_missing(held: _Held) -> None:
    for rule in _variables(held.rules):
        if rule["default"] is not None:
            os.environ.setdefault(rule["name"], rule["default"])


def _before_torch() -> None:
    """End the process where a value is not accepted, all of them told at once."""
    held = _held
    if held is None:
        return
    refused = [_missing_text(name) for name in held.missing]
    for rule in _variables(held.rules):
        if not policy_rules.accepts(rule, _value(rule)) and not rule["keep"]:
            refused.append(_refused_text(held, rule))
    if refused:
        _refuse(
            "the profile %s refuses %d of the variables here: %s"
            % (held.profile, len(refused), "; ".join(refused))
        )
    _set_missing(held)
    _bind_attention(held)


def _refuse(cause: str) -> None:
    from . import agree

    if not agree.keep(cause):  # as one of several ranks it tells the others first
        faults.die(cause)


def _bind_attention(held: _Held) -> None:
    from . import flash_binding

    if flash_binding.wanted(held.rules, os.environ):
        flash_binding.begin(CHOOSER)


def _missing_text(name: str) -> str:
    return "%s is read when a process starts, and was not set then: set it before" % name


def _refused_text(held: _Held, rule: Rule) -> str:
    found = "%s=%s" % (rule["name"], policy_rules.shown(_value(rule)))
    if held.judging:
        return "%s: accepted is %s: %s" % (found, policy_rules.expected(rule), rule["reason"])
    locked = policy_rules.expected(rule) if rule["accept"] else policy_rules.shown(None)
    return "%s: the lock was recorded with %s" % (found, locked)


def _after_torch(torch: ModuleType) -> None:
    held = _held
    if held is None:
        return
    for rule in held.rules:
        if rule["kind"] == "switch":
            _apply(rule, torch)
    held.began = _in_force(held, torch)
    if held.told and ledger.is_open():
        for name, value in held.began.items():
            settings.report(CHOOSER, name, value, SET)
    _tell_kept(held)
    looks.at_looks(_look)


def _tell_variables() -> None:
    if _held is not None and _held.told:
        for rule in _variables(_held.rules):
            settings.report(CHOOSER, ENV + rule["name"], _value(rule), SET)


def _apply(rule: Rule, torch: Any) -> None:
    """Set a switch to its default, unless the user has said by a variable what it is to be."""
    switch = policy_switches.SWITCHES.get(rule["name"])
    wanted = rule["default"]
    if switch is None or wanted is None or (rule["given_by"] and rule["given_by"] in os.environ):
        return
    found = switch.read(torch)
    if found is not None and not settings.same(found, wanted):
        switch.write(torch, wanted)


def _in_force(held: _Held, torch: Any) -> Dict[str, Any]:
    """The value of each rule by name; without switches that this torch does not have."""
    found: Dict[str, Any] = {}
    for rule in held.rules:
        if rule["kind"] == "variable":
            found[ENV + rule["name"]] = _value(rule)
            continue
        switch = policy_switches.SWITCHES.get(rule["name"])
        value = None if switch is None else switch.read(torch)
        if value is not None:
            found[rule["name"]] = value
    return found


def _tell_kept(held: _Held) -> None:
    """Say which values from outside are kept though the profile does not accept them."""
    if not held.judging or not ledger.is_open():
        return
    for rule in held.rules:
        name = _name(rule)
        value = held.began.get(name)
        if not policy_rules.accepts(rule, value):
            what = "kept" if rule["keep"] else "could not be set"
            text = "%s, %s: accepted is %s: %s"
            shown = (policy_rules.shown(value), what, policy_rules.expected(rule), rule["reason"])
            settings.problem("note" if rule["keep"] else "invalid", CHOOSER, name, text % shown)


def _name(rule: Rule) -> str:
    return (ENV if rule["kind"] == "variable" else "") + str(rule["name"])


def _look() -> None:
    """Tell each value that is no longer what it was when torch had been imported."""
    held, torch = _held, sys.modules.get("torch")
    if held is None or torch is None:
        return
    found = _in_force(held, torch)
    for rule in held.rules:
        name = _name(rule)
        if name not in found or settings.same(found[name], held.began.get(name)):
            continue
        if held.told:
            settings.report(CHOOSER, name + LATER, found[name], SET)
        if held.judging:
            _judge_later(held, rule, name, found[name])


def _judge_later(held: _Held, rule: Rule, name: str, value: Any) -> None:
    text = "the program itself set it to %s (it was %s)" % (
        policy_rules.shown(value),
        policy_rules.shown(held.began.get(name)),
    )
    if policy_rules.accepts(rule, value):
        settings.problem("note", CHOOSER, name, text)
        return
    text += "; the profile %s accepts %s: %s" % (
        held.profile,
        policy_rules.expected(rule),
        rule["reason"],
    )
    if rule["keep"]:
        settings.problem("note", CHOOSER, name, text)
        return
    way = "; take that out of the program, or accept it in a profile of your own"
    settings.problem("invalid", CHOOSER, name, text + way)
