"""What a bisection found, as JSON values and as text."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stackbisect.journal import ROOT, Record
from stackbisect.probe import Candidate, InfrastructureError, ProbeResult, Runtime
from stackbisect.search import noisy, probing
from stackbisect.search.transition import Transition
from stackbisect.search.verdict import (
    EndsFailure,
    Verdict,
    first_difference,
)
from stackbisect.stages import search
from stackbisect.stages.search import Search

EXIT_CODES = {
    "found": 0,
    "not_reproduced": 1,
    "range": 2,
    "ends_untestable": 4,
    "infrastructure": 5,
    "interrupted": 130,
    "unfinished": 5,
}

HOW_TO_GIVE_EVIDENCE = """\
Evidence is what a verdict comes from. Any of these gives some:
  pinner.fingerprint("loss", value)   in the workload (`import pinner` works in every probe)
  torch optimizer steps               are seen by themselves where the workload uses torch.optim
  --tap NAME                          fingerprints metrics of known trainers (configs/taps)
  --evidence-file GLOB                files the command writes
  --evidence-stdout REGEX             what the command prints, one step a match
or ask for git's rule with --verdict exit-code."""

_KINDS = {
    "distributions": "Python distributions",
    "packages": "Debian packages",
    "environment": "environment",
    "libraries": "shared libraries that were loaded",
}
_SHOWN_DIFFERENCES = 40


def outcome(
    record: Record, name: str, step: search.Outcome | None, runtime: Runtime | None
) -> dict[str, Any]:
    """The answer as JSON values. With a runtime, what differs is looked up in it.

    `step` is how the search ended; None where it did not.
    """
    found = _begin(record, name)
    if isinstance(step, EndsFailure):
        found.update(status="ends_untestable", end=step.end, reason=step.reason)
        if step.no_evidence:
            found["hint"] = HOW_TO_GIVE_EVIDENCE
    elif isinstance(step, probing.Same):
        found.update(status="not_reproduced", reason=step.reason)
        found["notes"] += step.notes
    elif isinstance(step, probing.Found):
        _add_answer(found, record, step)
        if runtime is not None:
            _add_differences(found, record, step, runtime)
    elif isinstance(step, noisy.Estimate):
        found.update(Search.of(record.header).result(record, step))
        left, right = found.pop("pair")
        if right - left > 1:
            labels = [candidate.label for candidate in record.header.candidates]
            found["range"] = labels[left : right + 1]
    else:
        found.update(status="unfinished")
    found["exit_code"] = EXIT_CODES[found["status"]]
    return found


def stopped(record: Record, name: str, status: str, reason: str) -> dict[str, Any]:
    """The state as JSON values where the program had to stop."""
    found = _begin(record, name)
    found.update(status=status, reason=reason, exit_code=EXIT_CODES[status])
    found["resume"] = shlex.join(["stackbisect", "resume", name])
    return found


def _begin(record: Record, name: str) -> dict[str, Any]:
    header, known = record.header, Search.of(record.header).verdicts(record)
    testable = len({c.id for c in header.candidates})
    touched = {
        c.id
        for c, verdict in zip(header.candidates, known, strict=True)
        if verdict is not None and not verdict.testable
    }
    return {
        "status": "unfinished",
        "name": name,
        "last_good": None,
        "first_bad": None,
        "range": None,
        "probes": len(record.probes),
        "probe_bound": probing.probe_bound(testable - len(touched), len(touched)),
        "transitions": [],
        "monotonic": None,
        "culprits": [],
        "difference": None,
        "verdicts": [
            _verdict(candidate, verdict, record, name)
            for candidate, verdict in zip(header.candidates, known, strict=True)
        ],
        "excluded": [dict(each) for each in header.excluded],
        "notes": [*header.notes],
        "seconds": round(sum(p.result.ended - p.result.started for p in record.probes), 3),
        "workdir": header.workdir,
        "again": shlex.join(header.again),
    }


def _verdict(
    candidate: Candidate, verdict: Verdict | None, record: Record, name: str
) -> dict[str, Any]:
    probes = [probed for probed in record.probes if probed.candidate == candidate.id]
    found: dict[str, Any] = {
        "label": candidate.label,
        "id": candidate.id,
        "verdict": None if verdict is None else verdict.kind,
        "value": None if verdict is None else verdict.value or None,
        "reason": "" if verdict is None else verdict.reason,
        "probes": [probed.number for probed in probes],
        "exit_codes": [probed.result.exit_code for probed in probes],
        "logs": [str(ROOT / name / probed.result.log) for probed in probes],
    }
    if len(candidate.details.get("tags", ())) > 1:
        found["tags"] = list(candidate.details["tags"])
    return found


def _add_answer(found: dict[str, Any], record: Record, step: probing.Found) -> None:
    answer, candidates = step.answer, record.header.candidates
    labels = [candidate.label for candidate in candidates]
    found.update(
        status="range" if answer.ambiguous else "found",
        last_good=labels[answer.last_good],
        first_bad=labels[answer.first_bad],
        transitions=[_transition(each, found["verdicts"]) for each in answer.transitions],
        monotonic=answer.monotonic,
    )
    if answer.ambiguous:
        found["range"] = labels[answer.last_good : answer.first_bad + 1]
    found["notes"] += step.notes
    if not answer.monotonic:
        found["notes"].append(
            "the history is not monotonic: bits came back after others had been seen; "
            "there may be more transitions than these"
        )
    seen = record.seen()
    pair = candidates[answer.last_good], candidates[answer.first_bad]
    left, right = (seen[each.id][0].evidence for each in pair)
    found["first_difference"] = first_difference(left, right)
    found["notes"] += _machine_notes(record)


def _machine_notes(record: Record) -> list[str]:
    """Facts of the probes that must be equal and are not."""
    found = []
    for fact in ("transfer", "entrypoint", "user"):
        values = {
            repr(p.result.facts[fact])
            for p in record.probes
            if p.result.status == "ran" and fact in p.result.facts
        }
        if len(values) > 1:
            found.append(f"probes were made with different {fact}: {', '.join(sorted(values))}")
    return found


def _transition(transition: Transition, verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    left, right = verdicts[transition.left], verdicts[transition.right]
    between = [verdicts[position] for position in transition.between]
    return {
        "from": left["label"],
        "to": right["label"],
        "from_verdict": left["verdict"],
        "to_verdict": right["verdict"],
        "adjacent": transition.adjacent,
        "narrowed": transition.narrowed,
        "untestable": [each["label"] for each in between if each["verdict"] is not None],
        "untried": [each["label"] for each in between if each["verdict"] is None],
        "difference": None,
    }


def _add_differences(
    found: dict[str, Any], record: Record, step: probing.Found, runtime: Runtime
) -> None:
    candidates = record.header.candidates

    def difference(left: Candidate, right: Candidate) -> dict[str, Any]:
        libraries = _libraries(record, left, right)
        return {
            **runtime.difference(left, right),
            **({"libraries": libraries} if libraries else {}),
        }

    try:
        for transition, shown in zip(step.answer.transitions, found["transitions"], strict=True):
            if transition.narrowed:
                pair = candidates[transition.left], candidates[transition.right]
                shown["difference"] = difference(*pair)
        whole = next(
            (
                shown["difference"]
                for shown in found["transitions"]
                if (shown["from"], shown["to"]) == (found["last_good"], found["first_bad"])
            ),
            None,
        )
        if whole is None:
            pair = candidates[step.answer.last_good], candidates[step.answer.first_bad]
            whole = difference(*pair)
        found["difference"] = whole
    except InfrastructureError as error:
        found["notes"].append(f"what differs could not be read: {error}")
        return
    if whole is not None and not any(whole.values()):
        found["notes"].append(
            "nothing that is listed differs between the two; the change is in other files"
        )


def _libraries(record: Record, left: Candidate, right: Candidate) -> dict[str, list[str | None]]:
    """Shared libraries that the command loaded on one side only, by file name."""
    seen = record.seen()
    loaded = [
        {
            os.path.basename(path): path
            for result in seen.get(each.id, ())
            for path in result.loaded.get("libraries", ())
        }
        for each in (left, right)
    ]
    if not all(loaded):
        return {}
    names = sorted({*loaded[0]} ^ {*loaded[1]})
    return {name: [loaded[0].get(name), loaded[1].get(name)] for name in names}


# -- as text ---------------------------------------------------------------------------------------


def text(found: Mapping[str, Any]) -> str:
    """The answer for people."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"bisection {found['name']}: {_headline(found)}"
    if found.get("reason"):
        yield f"  {found['reason']}"
    if found.get("hint"):
        yield from ("", *found["hint"].splitlines())
    if found["last_good"] is not None:
        yield f"  last good  {found['last_good']}"
        yield f"  first bad  {found['first_bad']}"
    if found.get("first_difference"):
        yield f"  their bits first differ in {found['first_difference']}"
    if found["range"]:
        yield f"  between them nothing can be tested: {', '.join(found['range'][1:-1])}"
    yield ""
    yield from _verdict_lines(found["verdicts"])
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
    word = "probe" if found["probes"] == 1 else "probes"
    yield f"{found['probes']} {word}, {duration(found['seconds'])}"
    if found.get("resume"):
        yield f"go on with: {found['resume']}"
    yield f"run it again: cd {shlex.quote(found['workdir'])} && {found['again']}"


def _headline(found: Mapping[str, Any]) -> str:
    return {
        "found": "found",
        "not_reproduced": "not reproduced",
        "range": "narrowed to a range that cannot be tested",
        "ends_untestable": f"the {found.get('end', '')} end cannot be tested",
        "infrastructure": "stopped before there was an answer",
        "interrupted": "interrupted",
        "unfinished": "not finished",
    }[found["status"]]


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
        parts.append(short(each["value"]))
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


def short(digest: str) -> str:
    """The first digits of a digest, enough to tell bits apart by eye."""
    return (digest.partition(":")[2] or digest)[:12]


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
        yield f"    {name:{width}}  {_or_absent(old)} → {_or_absent(new)}"


def _or_absent(value: str | None) -> str:
    return "(absent)" if value is None else value


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def last_lines(result: ProbeResult, count: int = 5) -> list[str]:
    """The end of a probe's log."""
    try:
        with open(result.log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - 4096, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]
