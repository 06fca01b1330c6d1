"""What a bisection found, as JSON values."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from stackbisect import report_chain
from stackbisect.journal import ROOT, Record
from stackbisect.probe import Candidate, InfrastructureError, ProbeResult, Runtime
from stackbisect.search import noisy, probing
from stackbisect.search.transition import Transition
from stackbisect.search.verdict import EndsFailure, Verdict, first_difference
from stackbisect.stage import Context
from stackbisect.stages import chain, search
from stackbisect.stages.search import Search

EXIT_CODES = {
    "found": 0,
    "not_reproduced": 1,
    "range": 2,
    "elsewhere": 2,
    "unresolved": 2,
    "unstable": 2,
    "same": 2,
    "unconfirmed": 2,
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
        found["notes"].append("components are not searched with --noisy: none is blamed")
    else:
        found.update(status="unfinished")
    report_chain.add(found, record)
    if found["status"] != "unfinished" and _goes_on(record, name):
        found["status"] = "unfinished"
        found["answer"] = report_chain.sentence(found)
    found["exit_code"] = EXIT_CODES[found["status"]]
    return found


def _goes_on(record: Record, name: str) -> bool:
    """Whether a stage has no conclusion yet."""
    try:
        return chain.current(record, Context(None, ROOT / name)) is not None
    except InfrastructureError:  # what comes next is in a repository that is not there now
        return True


def stopped(record: Record, name: str, status: str, reason: str) -> dict[str, Any]:
    """The state as JSON values where the program had to stop."""
    found = _begin(record, name)
    found.update(status=status, reason=reason, exit_code=EXIT_CODES[status])
    report_chain.add(found, record)
    found["resume"] = shlex.join(["stackbisect", "resume", name])
    return found


def _begin(record: Record, name: str) -> dict[str, Any]:
    header = record.header
    known = Search.of(header).verdicts(chain.first_search(record))
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
    if whole and not any(whole.values()):
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
