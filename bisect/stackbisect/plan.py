"""What a bisection would do, said before anything is tried or a layer is pulled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stackbisect import report_chain, wording
from stackbisect.journal import SEARCH
from stackbisect.search import culprits, gallop, noisy, probing
from stackbisect.search.verdict import Rule
from stackbisect.spaces import window
from stackbisect.stages import chain, choices, components, confirm

_COUNTS = (30, 100, 300)
"""So many components for which the probes of one culprit are told: how many there are is not known
before both stacks were looked into."""


def planned(setup: Mapping[str, Any], found: window.Space) -> dict[str, Any]:
    """The plan as JSON values."""
    ids = {candidate.id for candidate in found.candidates}
    plan: dict[str, Any] = {
        "status": "planned",
        "candidates": [candidate.to_json() for candidate in found.candidates],
        "distinct": len(ids),
        "probe_bound": _search_bound(setup, found),
        "stages": _stages(setup, found),
        "excluded": [dict(each) for each in found.excluded],
        "notes": list(found.notes),
        "environment": {},
    }
    if setup["runtime"] == "docker":
        from stackbisect.spaces import tags

        plan["environment"] = tags.env_difference(found.candidates[0], found.candidates[-1])
    if len(ids) == 1:
        plan["notes"].append("both ends are one and the same image: there is nothing to search")
    return plan


def _search_bound(setup: Mapping[str, Any], found: window.Space) -> int:
    ids = [candidate.id for candidate in found.candidates]
    if setup.get("noisy"):
        return noisy.DEFAULT.budget or 0
    if setup.get("no_good_end"):
        return gallop.probes_left(ids, {}, Rule())
    if setup.get("all_transitions"):
        return 2 * len(set(ids))  # each is tried, and repeated where it is next to a change
    return probing.probe_bound(len(set(ids)))


def _stages(setup: Mapping[str, Any], found: window.Space) -> list[dict[str, Any]]:
    """The stages that follow one another where the bits do change, and the most probes of each.

    None where that depends on what is found; `for_one` are the probes of one culprit among so many
    components.
    """
    stages = [_stage(SEARCH, _search_bound(setup, found))]
    depth = setup.get("depth", chain.DEPTHS[0])
    if depth == "search" or setup.get("noisy"):
        return stages
    # The transplant twice, and the control or the reverse.
    stages.append(_stage(choices.NAME, 3))
    commits = setup["runtime"] == "git" and "environment" not in setup
    if commits:
        stages.append(_stage("commit", None))
    elif depth in ("components", "versions"):
        stages.append({**_stage(components.NAME, None), "for_one": _for_one()})
        if depth == "versions":
            stages.append(_stage("versions:the culprit", None))
    stages.append(_stage(confirm.NAME, 2 * confirm.TURNS))
    return stages


def _for_one() -> dict[str, int]:
    """The bad stack itself was tried before."""
    return {str(count): culprits.probes_of_one(count) - 1 for count in _COUNTS}


def _stage(name: str, most: int | None) -> dict[str, Any]:
    return {"stage": name, "title": report_chain.title(name), "probes": most}


def text(plan: Mapping[str, Any]) -> str:
    """The plan for people."""
    lines = [f"{plan['distinct']} candidates, from the good end to the bad end"]
    width = max(len(each["label"]) for each in plan["candidates"])
    for each in plan["candidates"]:
        details = each["details"]
        parts = [f"{each['label']:{width}}"]
        if "created" in details:
            parts += [wording.short(each["id"]), details["created"][:10], _size(details["size"])]
            others = [tag for tag in details["tags"] if tag != each["label"]]
            parts += [f"also {', '.join(others)}"] if others else []
        if "subject" in details:
            parts += [details["date"][:10], details["subject"]]
        lines.append("  " + "  ".join(parts))
    for name, (old, new) in plan["environment"].items():
        lines.append(f"  {name}: {old or '(absent)'} → {new or '(absent)'}")
    lines += [f"left out: {each['label']}: {each['reason']}" for each in plan["excluded"]]
    lines += [f"note: {note}" for note in plan["notes"]]
    lines.append(
        f"at most {plan['probe_bound']} probes, one more for each candidate that cannot be tested"
    )
    if len(plan["stages"]) > 1:
        lines.append("then, where the bits do change:")
        lines += [f"  {_stage_line(each)}" for each in plan["stages"][1:]]
    return "\n".join(lines) + "\n"


def _stage_line(stage: Mapping[str, Any]) -> str:
    if "for_one" in stage:
        counts = [f"{probes} among {count}" for count, probes in stage["for_one"].items()]
        return f"{stage['title']}: probes for one culprit: {wording.listed(counts)}"
    if stage["probes"] is None:
        return str(stage["title"])
    return f"{stage['title']}: at most {wording.counted(stage['probes'], 'probe')}"


def _size(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size} B"
