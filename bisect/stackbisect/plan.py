"""What a bisection would do, said before anything is tried or a layer is pulled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stackbisect import wording
from stackbisect.search import probing
from stackbisect.spaces import window


def planned(setup: Mapping[str, Any], found: window.Space) -> dict[str, Any]:
    """The plan as JSON values."""
    ids = {candidate.id for candidate in found.candidates}
    plan: dict[str, Any] = {
        "status": "planned",
        "candidates": [candidate.to_json() for candidate in found.candidates],
        "distinct": len(ids),
        "probe_bound": probing.probe_bound(len(ids)),
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
        lines.append("  " + "  ".join(parts))
    for name, (old, new) in plan["environment"].items():
        lines.append(f"  {name}: {old or '(absent)'} → {new or '(absent)'}")
    lines += [f"left out: {each['label']}: {each['reason']}" for each in plan["excluded"]]
    lines += [f"note: {note}" for note in plan["notes"]]
    lines.append(
        f"at most {plan['probe_bound']} probes, one more for each candidate that cannot be tested"
    )
    return "\n".join(lines) + "\n"


def _size(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size} B"
