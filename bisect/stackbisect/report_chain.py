"""The chain of an answer, as JSON values: what each stage found, and the probes that show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stackbisect import wording
from stackbisect.journal import SEARCH, Record
from stackbisect.spaces.components import Component
from stackbisect.stages import choices, components, confirm, versions
from stackbisect.stages.choices import Choices
from stackbisect.stages.components import Components
from stackbisect.stages.confirm import Confirm
from stackbisect.stages.search import Search

COMMIT = "commit"
_UNABLE = "unsupported"
_TITLES = {
    SEARCH: Search.title,
    choices.NAME: Choices.title,
    components.NAME: Components.title,
    confirm.NAME: Confirm.title,
    COMMIT: "the commit that changes the bits",
}
_TITLES_OF_MANY = {
    "versions": "which version of {} changes the bits",
    "merge": "which commit of the branch that {} merged",
    "base": "which commit between the merge base and {}",
    "submodule": "which commit of what submodule {} leads to",
    "pin": "which commit of what pin file {} leads to",
}


def add(found: dict[str, Any], record: Record) -> None:
    """Add what the stages after the search concluded; `status` is the search's before."""
    done = record.conclusions
    found["culprits"] = _culprits(record)
    found["choices"] = dict(done[choices.NAME]) if choices.NAME in done else None
    found["commit"] = _commit(record)
    found["confirmed"] = _confirmed(done.get(confirm.NAME))
    found["chain"] = list(_chain(found, record))
    found["hosts"] = hosts(record)
    found["notes"] += _notes(record, found["hosts"])
    if found["status"] in ("found", "range"):
        status, reason = _status(record, found["status"])
        found["status"] = status
        if reason:
            found["reason"] = reason
    found["answer"] = sentence(found)


def filled(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """An answer that was written before there were stages, as if it had been a search alone."""
    if "answer" in found:
        return found
    empty: dict[str, Any] = {"choices": None, "commit": None, "confirmed": None}
    older = {**empty, "culprits": [], "chain": [], "hosts": [], **found}
    return {**older, "answer": sentence(older)}


def _status(record: Record, status: str) -> tuple[str, str]:
    """The whole bisection's status, and why it is not "found"."""
    confirmed = record.conclusions.get(confirm.NAME, {})
    if confirmed and confirmed["status"] != "confirmed":
        return "unconfirmed", confirmed["reason"]
    inner = record.conclusions.get(components.NAME, {})
    if inner and inner["status"] not in ("found", _UNABLE):
        return inner["status"], inner["reason"]
    return status, ""


def _culprits(record: Record) -> list[dict[str, Any]]:
    chosen = record.conclusions.get(choices.NAME, {})
    found = [*chosen.get("culprits", ()), *_components(record).get("culprits", ())]
    return [{**each, "versions": _versions(each, record)} for each in found]


def _components(record: Record) -> Mapping[str, Any]:
    return record.conclusions.get(components.NAME, {})


def _versions(culprit: Mapping[str, Any], record: Record) -> dict[str, Any] | None:
    """Between which of its versions a culprit of one component changes the bits."""
    if len(culprit["components"]) != 1:
        return None
    name = versions.PREFIX + culprit["components"][0]["name"]
    result = record.conclusions.get(name)
    if result is None or result.get("last_good") is None:
        return None
    return {key: result[key] for key in ("status", "last_good", "first_bad", "range")}


def _commit(record: Record) -> dict[str, Any] | None:
    culprit = record.conclusions.get(COMMIT, {}).get("culprit")
    return None if culprit is None else dict(culprit)


def _confirmed(result: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if result is None:
        return None
    return {key: result[key] for key in ("good", "bad", "status", "good_label", "bad_label")}


# -- the chain -------------------------------------------------------------------------------------


def _chain(found: Mapping[str, Any], record: Record) -> Iterator[dict[str, Any]]:
    for stage in dict.fromkeys([SEARCH, *record.stages, *record.conclusions]):
        result = record.conclusions.get(stage)
        mine = [probed for probed in record.probes if probed.stage == stage]
        if result is None and not mine:
            continue
        yield {
            "stage": stage,
            "title": title(stage),
            "status": "unfinished" if result is None else result["status"],
            "result": "" if result is None else in_short(stage, result),
            "reason": "" if result is None else result.get("reason", ""),
            "probes": [probed.number for probed in mine],
            "seconds": round(sum(p.result.ended - p.result.started for p in mine), 3),
            "proof": [] if result is None else list(_proof(stage, result, found, record)),
        }


def title(stage: str) -> str:
    """What people read for a stage's name."""
    kind, _, name = stage.partition(":")
    if kind in ("merge", "base"):  # names of commits
        name = wording.short(name)
    return _TITLES.get(stage) or _TITLES_OF_MANY.get(kind, "{}").format(name or stage)


def in_short(stage: str, result: Mapping[str, Any]) -> str:
    """A stage's result in a few words; its status where there is nothing else to say."""
    if "last_good" in result and result["last_good"] is not None:
        between = f"{result['last_good']} → {result['first_bad']}"
        return between + (" (a range)" if result["status"] == "range" else "")
    if stage == components.NAME and result["culprits"]:
        return _listed(result["culprits"])
    if stage == COMMIT and "culprit" in result:
        return _commit_name(result["culprit"])
    return str(result["status"]).replace("-", " ").replace("_", " ")


def _proof(
    stage: str, result: Mapping[str, Any], found: Mapping[str, Any], record: Record
) -> Iterator[dict[str, Any]]:
    """What shows a stage's result: a stack, its bits, its probes."""
    if stage == SEARCH:
        wanted = (found["last_good"], found["first_bad"])
        for what, label in zip(("last good", "first bad"), wanted, strict=True):
            yield from (_row(what, v) for v in found["verdicts"] if v["label"] == label)
    elif stage == choices.NAME:
        yield from _rows(result, ("transplant", "control", "reverse"))
    elif stage == components.NAME:
        yield from _rows(result, ("swap_test",))
        for culprit in result["culprits"]:
            yield from _rows(culprit, ("alone", "without"))
    elif stage == confirm.NAME:
        yield from _turns(result)
    else:
        shown = result.get("versions") or result.get("verdicts") or ()
        wanted = (result.get("last_good"), result.get("first_bad"))
        for what, label in zip(("last good", "first bad"), wanted, strict=True):
            each = next((v for v in shown if v.get("version", v.get("label")) == label), None)
            if each is not None:
                yield _row(what, each)


def _rows(result: Mapping[str, Any], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        if result.get(name) is not None:
            yield _row(name.replace("_", " "), result[name])


def _row(what: str, shown: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "what": what,
        "label": shown["label"],
        "verdict": shown["verdict"],
        "value": shown["value"],
        "probes": list(shown.get("probes", ())),
    }


def _turns(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    values = {"good": iter(result["good"]), "bad": iter(result["bad"])}
    for turn in result["turns"]:
        side = turn["side"]
        yield {
            "what": f"{side} side",
            "label": result[f"{side}_label"],
            "verdict": turn["verdict"],
            "value": next(values[side]),
            "probes": [turn["probe"]],
        }


# -- hosts and notes -------------------------------------------------------------------------------


def hosts(record: Record) -> list[dict[str, Any]]:
    """The machines that probes ran on, with their facts and probes."""
    found: list[dict[str, Any]] = []
    for probed in record.probes:
        facts = probed.result.facts.get("host")
        if probed.result.status != "ran" or not facts:
            continue
        known = next((each for each in found if each["facts"] == facts), None)
        if known is None:
            known = {"facts": dict(facts), "probes": []}
            found.append(known)
        known["probes"].append(probed.number)
    return found


def _notes(record: Record, machines: Sequence[Mapping[str, Any]]) -> list[str]:
    inner = _components(record)
    found = list(record.conclusions.get(choices.NAME, {}).get("notes", ()))
    found += inner.get("notes", ())
    for culprit in inner.get("culprits", ()):
        names = [wording.name(Component.from_json(each)) for each in culprit["inseparable"]]
        if names:
            shown = wording.listed(names)
            found.append(f"{shown} could not be tested without each other: blamed as one")
    if inner.get("companions"):
        names = [wording.name(Component.from_json(each)) for each in inner["companions"]]
        shown = wording.listed(names)
        found.append(f"swapped with the culprits so that the rest could be tested: {shown}")
    if inner.get("status") == "found" and inner["whole"] is None:
        found.append("the culprits alone could not be tried together in the good stack")
    for stage, result in record.conclusions.items():
        if stage.startswith(versions.PREFIX) and result.get("monotonic") is False:
            found.append(f"the versions of {result['component']['name']} are not monotonic")
    return found + _host_notes(machines, record)


def _host_notes(machines: Sequence[Mapping[str, Any]], record: Record) -> list[str]:
    if len(machines) < 2:
        return []
    facts = [each["facts"] for each in machines]
    differing = [
        name
        for name in dict.fromkeys(name for each in facts for name in each)
        if any(each.get(name) != facts[0].get(name) for each in facts)
    ]
    listed = [
        f"{', '.join(str(each['facts'].get(name)) for name in differing)} "
        f"(probes {', '.join(map(str, each['probes']))})"
        for each in machines
    ]
    note = f"probes ran on machines that differ in {wording.listed(differing)}: "
    found = [note + "; ".join(listed)]
    turns = {p.number for p in record.probes if p.stage == confirm.NAME}
    if sum(bool(turns & set(each["probes"])) for each in machines) > 1:
        found.append("the turns of the confirmation ran on different machines: it shows less")
    return found


# -- in one sentence -------------------------------------------------------------------------------


def sentence(found: Mapping[str, Any]) -> str:
    """The answer in one sentence."""
    status = found["status"]
    if found["last_good"] is None or status in ("unfinished", "infrastructure", "interrupted"):
        return {
            "not_reproduced": "not reproduced",
            "ends_untestable": f"the {found.get('end', '')} end cannot be tested",
            "infrastructure": "stopped before there was an answer",
            "interrupted": "interrupted",
        }.get(status, "not finished")
    where = f"between {found['last_good']} and {found['first_bad']}"
    if undecided(found):
        return f"not decided; if the bits change, then most probably {where}"
    if found["range"]:
        where += " (candidates between them cannot be tested)"
    culprits, commit = found["culprits"], found.get("commit")
    if status == "unconfirmed":
        return f"the change {where} was not confirmed: {found['reason']}"
    if status == "elsewhere":
        return f"the bits change {where}, but in nothing that can be swapped"
    if status in ("unresolved", "unstable", "same"):
        known = f"; known: {_listed(culprits)}" if culprits else ""
        return f"the bits change {where}; by which component cannot be told{known}"
    if commit is not None:
        return f"{_commit_name(commit)} changes the bits"
    if not culprits:
        return f"the bits change {where}"
    whole = f"{_changes(culprits)} the bits"
    values = [(each["good"], each["bad"]) for each in culprits[0]["components"]]
    if values == [(found["last_good"], found["first_bad"])]:  # a search over its versions
        return whole
    return f"{whole} {where}"


def undecided(found: Mapping[str, Any]) -> bool:
    """Whether noise was too much for the probes that could be made."""
    noise = found.get("noise")
    return noise is not None and not noise["decided"]


def _changes(culprits: Sequence[Mapping[str, Any]]) -> str:
    alone = [each for each in culprits if not each["given"]]
    more = [each for each in culprits if each["given"]]
    also = f" (and {_listed(more)} on top of it)" if more else ""
    if len(alone) > 1:
        return f"each by itself, {_listed(alone)}{also} change"
    return f"{_listed(alone)}{also} change" + ("" if _of_several(alone[0]) else "s")


def _listed(culprits: Sequence[Mapping[str, Any]]) -> str:
    """Culprits; of how many parts each one is can be seen."""
    texts = [blamed(each) + (" together" if _of_several(each) else "") for each in culprits]
    return "; ".join(texts) if any(map(_of_several, culprits)) else wording.listed(texts)


def _of_several(culprit: Mapping[str, Any]) -> bool:
    return len(culprit["components"]) > 1 and culprit.get("kind") != "selection"


def blamed(culprit: Mapping[str, Any]) -> str:
    """A culprit by its parts: `numpy 2.1.3 → 2.2.0`, with its versions where they are known."""
    parts = [Component.from_json(each) for each in culprit["components"]]
    if culprit.get("kind") == "selection":
        return f"the choice of {wording.counted(len(parts), 'config')} at run time"
    known = culprit.get("versions")
    if known is None or (known["last_good"], known["first_bad"]) == (parts[0].good, parts[0].bad):
        return wording.changes(parts)
    inner = f"{wording.name(parts[0])} {known['last_good']} → {known['first_bad']}"
    return f"{inner} (of {parts[0].good} → {parts[0].bad})"


def _commit_name(commit: Mapping[str, Any]) -> str:
    sha = str(commit.get("sha") or commit.get("commit", ""))[:12]
    subject = commit.get("subject")
    return f"commit {sha}" + (f" ({subject})" if subject else "")
