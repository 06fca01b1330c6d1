"""A bisection's answer for people: one sentence, the chain that shows it, all that was seen."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stackbisect import report_chain, wording

_KINDS = {
    "distributions": "Python distributions",
    "packages": "Debian packages",
    "environment": "environment",
    "libraries": "shared libraries that were loaded",
}
_SHOWN_DIFFERENCES = 40
_FEW = 8
"""More differences than this are only counted where the culprits among them are known."""


def text(found: Mapping[str, Any]) -> str:
    """The answer for people."""
    return "\n".join(_lines(report_chain.filled(found))) + "\n"


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"bisection {found['name']}: {found['answer']}"
    if found.get("reason") and found["reason"] not in found["answer"]:
        yield f"  {found['reason']}"
    if found.get("hint"):
        yield from ("", *found["hint"].splitlines())
    if found["last_good"] is not None:
        yield f"  last good  {found['last_good']}"
        yield f"  first bad  {found['first_bad']}"
    if found.get("first_difference"):
        yield f"  their bits first differ in {found['first_difference']}"
    if found["range"] and not report_chain.undecided(found):
        yield f"  between them nothing can be tested: {', '.join(found['range'][1:-1])}"
    yield from _kept_lines(found)
    yield from _chain_lines(found["chain"])
    yield ""
    yield from _verdict_lines(found["verdicts"])
    yield from _noise_lines(found.get("noise"))
    if found["transitions"]:
        yield from _transition_lines(found["transitions"])
    yield from _difference_lines(found)
    if found["excluded"]:
        yield ""
        yield "left out"
        yield from (f"  {each['label']}: {each['reason']}" for each in found["excluded"])
    if found["notes"]:
        yield ""
        yield from (f"note: {note}" for note in found["notes"])
    yield ""
    yield f"{wording.counted(found['probes'], 'probe')}, {wording.duration(found['seconds'])}"
    if found.get("resume"):
        yield f"go on with: {found['resume']}"
    yield f"run it again: {again(found)}"


def again(found: Mapping[str, Any]) -> str:
    """The command that runs it again from anywhere."""
    return f"cd {shlex.quote(found['workdir'])} && {found['again']}"


def _kept_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """What cures a selection: its lock."""
    chosen = found["choices"] or {}
    if chosen.get("enforce"):
        yield f"  keep the choices: {chosen['enforce']}"
        yield from (f"    {line}" for line in chosen.get("diff", ())[:_SHOWN_DIFFERENCES])
    if found.get("commit") and found["commit"].get("show"):
        yield f"  show it: {found['commit']['show']}"


def _chain_lines(chain: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each stage with what shows it; the search alone is told by its candidates."""
    if len(chain) < 2:
        return
    yield ""
    yield "how it was found"
    for number, each in enumerate(chain, start=1):
        spent = [wording.counted(len(each["probes"]), "probe"), wording.duration(each["seconds"])]
        cost = f" ({', '.join(spent)})" if each["probes"] else ""
        yield f"  {number}. {each['title']}: {each['result'] or each['status']}{cost}"
        if each["reason"]:
            yield f"     {each['reason']}"
        yield from _columns([proof_cells(row) for row in each["proof"]])


def proof_cells(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """What shows a result: what for, the stack, its bits, its probes."""
    return str(row["what"]), str(row["label"]), bits(row), numbers(row)


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        yield f"     {'  '.join(cells)}".rstrip()


def bits(row: Mapping[str, Any]) -> str:
    """A proof's verdict and digest."""
    value = wording.short(row["value"]) if row["value"] else ""
    return " ".join(part for part in (row["verdict"] or "", value) if part)


def numbers(row: Mapping[str, Any]) -> str:
    """A proof's probes."""
    if not row["probes"]:
        return ""
    word = "probe" if len(row["probes"]) == 1 else "probes"
    return f"{word} {', '.join(map(str, row['probes']))}"


def _noise_lines(noise: Mapping[str, Any] | None) -> Iterator[str]:
    if noise is None:
        return
    yield ""
    before, after = f"{noise['good_rate']:.0%}", f"{noise['bad_rate']:.0%}"
    yield f"other bits than the good end's: {before} of probes before the change, {after} after it"
    yield "where the change is"
    ranked = sorted(noise["posterior"].items(), key=lambda item: -item[1])
    yield from (f"  {label}: {mass:.1%}" for label, mass in ranked[:5])
    if noise["none"] >= 0.0005:
        yield f"  nowhere: {noise['none']:.1%}"


def _verdict_lines(verdicts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    width = max(len(each["label"]) for each in verdicts)
    yield "candidates, from the good end to the bad end"
    untried = 0
    for each in verdicts:
        if each["verdict"] is None and not each["probes"]:
            untried += 1
            continue
        if untried:
            yield f"  ... {untried} not tried"
        untried = 0
        yield f"  {each['label']:{width}}  {each['verdict'] or 'undecided':10}  {_about(each)}"
    if untried:
        yield f"  ... {untried} not tried"


def _about(each: Mapping[str, Any]) -> str:
    parts = []
    if each["value"]:
        parts.append(wording.short(each["value"]))
    if each["probes"]:
        word = "probe" if len(each["probes"]) == 1 else "probes"
        parts.append(f"{word} {', '.join(map(str, each['probes']))}")
    if each["reason"]:
        parts.append(each["reason"])
    if each.get("tags"):
        parts.append(f"also {', '.join(tag for tag in each['tags'] if tag != each['label'])}")
    log = each["logs"][-1] if each["logs"] else ""
    if log and each["verdict"] in ("untestable", "unstable"):
        parts.append(f"log {log}")
    return " · ".join(parts)


def _transition_lines(transitions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield ""
    yield "transitions seen"
    for each in transitions:
        line = f"  {each['from']} ({each['from_verdict']}) → {each['to']} ({each['to_verdict']})"
        if each["untestable"]:
            line += f", untestable between: {', '.join(each['untestable'])}"
        if each["untried"]:
            line += f", not narrowed: {len(each['untried'])} untried between"
        yield line


def _difference_lines(found: Mapping[str, Any]) -> Iterator[str]:
    pairs = [(e["from"], e["to"], e["difference"]) for e in found["transitions"]]
    whole = (found["last_good"], found["first_bad"], found["difference"])
    if whole[:2] not in [pair[:2] for pair in pairs]:
        pairs.append(whole)
    for left, right, difference in pairs:
        if not difference or not any(difference.values()):
            continue
        yield ""
        count = sum(map(len, difference.values()))
        if found["culprits"] and count > _FEW:
            yield f"{count} things differ between {left} and {right} (--json has them)"
            continue
        yield f"what differs between {left} and {right}"
        for kind, names in difference.items():
            if names:
                yield f"  {_KINDS.get(kind, kind)}"
                yield from _changes(names)


def _changes(names: Mapping[str, Sequence[str | None]]) -> Iterator[str]:
    width = max(len(name) for name in names)
    for count, (name, (old, new)) in enumerate(names.items()):
        if count == _SHOWN_DIFFERENCES:
            yield f"    ... and {len(names) - count} more (--json has all)"
            return
        yield f"    {name:{width}}  {_change(old, new)}"


def _change(old: str | None, new: str | None) -> str:
    """A commit's file that is at both ends has no value before: it is changed."""
    if old == "":
        return new or "(absent)"
    return " → ".join("(absent)" if value is None else value for value in (old, new))
