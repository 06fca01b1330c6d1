"""A bisection's answer as a page of Markdown, to be pasted into an issue."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stackbisect import report_chain, report_text, wording
from stackbisect.spaces.components import Component

_SHOWN_DIFFERENCES = 20


def page(found: Mapping[str, Any]) -> str:
    """The page; every claim in it has its probes."""
    return "\n".join(_lines(report_chain.filled(found))) + "\n"


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {_text(_capital(found['answer']))}"
    yield ""
    if found.get("reason") and found["reason"] not in found["answer"]:
        yield from (_text(found["reason"]), "")
    if found["last_good"] is not None:
        yield f"- last good: {_code(found['last_good'])}"
        yield f"- first bad: {_code(found['first_bad'])}"
        if found["range"] and not report_chain.undecided(found):
            inner = ", ".join(_code(label) for label in found["range"][1:-1])
            yield f"- between them, cannot be tested: {inner}"
        if found.get("first_difference"):
            yield f"- their bits first differ in {_text(found['first_difference'])}"
        yield ""
    yield from _culprits(found["culprits"])
    yield from _kept(found.get("choices") or {})
    yield from _chain(found["chain"])
    yield from _proof(found["chain"])
    yield from _transitions(found)
    yield from _difference(found["difference"])
    yield from _notes(found)
    cost = wording.counted(found["probes"], "probe")
    yield f"{cost}, {wording.duration(found['seconds'])}. To run it again:"
    yield ""
    yield from _block(report_text.again(found))


def _culprits(culprits: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not culprits:
        return
    yield from _header("what changed", "last good stack", "first bad stack", "changes the bits")
    for each in culprits:
        versions = each["versions"]
        for part in map(Component.from_json, each["components"]):
            how = "by itself" if len(each["components"]) == 1 else "together"
            if each["given"]:
                how = "on top of the others"
            if versions is not None:
                how += f", between {versions['last_good']} and {versions['first_bad']}"
            values = (_code(wording.value(value)) for value in (part.good, part.bad))
            yield _row(_text(wording.name(part)), *values, _text(how))
    yield ""


def _kept(choices: Mapping[str, Any]) -> Iterator[str]:
    """What cures a selection: its lock."""
    if choices.get("enforce"):
        yield from ("With its lock the choices, and with them the bits, stay as they were:", "")
        yield from _block(choices["enforce"])
        yield ""


def _chain(chain: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not chain:
        return
    yield from _header("step", "result", "probes", "time")
    for each in chain:
        result = each["result"] or each["status"]
        reason = f": {each['reason']}" if each["reason"] else ""
        spent = wording.duration(each["seconds"]) if each["probes"] else ""
        count = str(len(each["probes"])) if each["probes"] else ""
        yield _row(_text(each["title"]), _text(result + reason), count, spent)
    yield ""


def _proof(chain: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [row for each in chain for row in each["proof"]]
    if not rows:
        return
    yield from _header("what shows it", "stack", "bits", "digest", "probes")
    for row in rows:
        digest = _code(wording.short(row["value"])) if row["value"] else ""
        numbers = ", ".join(map(str, row["probes"]))
        yield _row(row["what"], _text(row["label"]), row["verdict"] or "", digest, numbers)
    yield ""


def _transitions(found: Mapping[str, Any]) -> Iterator[str]:
    """All that were seen, where there is more to say than the pair."""
    if len(found["transitions"]) < 2:
        return
    yield from _header("transition", "from", "to")
    for each in found["transitions"]:
        pair = f"{each['from']} → {each['to']}"
        yield _row(_text(pair), str(each["from_verdict"]), str(each["to_verdict"]))
    yield ""


def _difference(difference: Mapping[str, Any] | None) -> Iterator[str]:
    """What differs between the two sides, folded: it is long."""
    listed = [
        (kind, name, old, new)
        for kind, names in (difference or {}).items()
        for name, (old, new) in names.items()
    ]
    if not listed:
        return
    yield f"<details><summary>{len(listed)} differences between the two</summary>"
    yield ""
    yield from _header("kind", "name", "last good", "first bad")
    for kind, name, old, new in listed[:_SHOWN_DIFFERENCES]:
        yield _row(kind, _text(name), _code(wording.value(old)), _code(wording.value(new)))
    yield ""
    if len(listed) > _SHOWN_DIFFERENCES:
        yield f"… and {len(listed) - _SHOWN_DIFFERENCES} more"
        yield ""
    yield "</details>"
    yield ""


def _notes(found: Mapping[str, Any]) -> Iterator[str]:
    notes = [f"left out: {each['label']}: {each['reason']}" for each in found["excluded"]]
    notes += found["notes"]
    for each in found["hosts"]:
        # Pages are pasted in public: a host's name is nobody's business there.
        facts = {k: v for k, v in each["facts"].items() if v and k != "hostname"}
        shown = ", ".join(f"{name} {_plain(value)}" for name, value in facts.items())
        notes.append(f"ran on: {shown}")
    yield from (f"- {_text(note)}" for note in notes)
    if notes:
        yield ""


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _header(*names: str) -> Iterator[str]:
    yield _row(*names)
    yield "|" + "---|" * len(names)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _capital(text: str) -> str:
    """Only words begin large: `numpy` is a name."""
    return text[:1].upper() + text[1:] if text.startswith(("the ", "each ", "not ")) else text


def _text(text: str) -> str:
    """A text in which nothing is markup, on one line."""
    escaped = re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", text)
    return " ".join(escaped.split()).replace("@", "&#64;")


def _code(text: str) -> str:
    """A literal; also where it holds backticks, and within a table."""
    plain = " ".join(text.split()).replace("|", "\\|")
    longest = max((len(run) for run in re.findall(r"`+", plain)), default=0)
    fence = "`" * (longest + 1)
    space = " " if longest else ""
    return f"{fence}{space}{plain}{space}{fence}"


def _block(text: str) -> Iterator[str]:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(longest + 1, 3)
    yield from (f"{fence}sh", text, fence)
