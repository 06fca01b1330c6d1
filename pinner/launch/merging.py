"""Merges ledgers that lie in folders into a draft lock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pinner.inside import VERSION
from pinner.inside.values import canonical
from pinner.launch import judge, record, session_dir
from pinner.launch.collect import read_ledgers
from pinner.launch.record import Outcome
from pinner.lockfile.conflicts import ConflictError, Rule
from pinner.lockfile.errors import LedgerError
from pinner.lockfile.ledgers import ProcessLedger, read_folder
from pinner.lockfile.merge import draft_lock, merge_ledgers
from pinner.lockfile.schema import Evidence, Run, Values
from pinner.policy import apply


def merge_folders(folders: Sequence[Path], out: Path, rule: Rule) -> Outcome:
    """Writes the draft lock that ledgers make. Raises `LedgerError` and `LockError`.

    folders: of ledgers, or sessions that hold one.
    """
    ledgers = [ledger for folder in folders for ledger in _ledgers(folder)]
    if not ledgers:
        names = ", ".join(str(folder) for folder in folders)
        return Outcome(judge.NOTHING, "nothing", f"expected ledgers in {names}, found none")
    try:
        draft = merge_ledgers(ledgers, rule)
    except ConflictError as error:
        details = {"conflicts": [conflict.as_json() for conflict in error.conflicts]}
        return Outcome(judge.REFUSED, "conflicts", str(error), details=details)
    run = Run(
        command=ledgers[0].process.argv,
        created=session_dir.now(),
        pinner=VERSION,
        complete=True,  # unless the draft has holes
    )
    policies = _policies(folders)
    if len(policies) > 1:
        text = f"the folders were recorded under {len(policies)} policies: merge those of one"
        return Outcome(judge.REFUSED, "policies", text)
    written = record.write_draft(out, draft_lock(draft, run, policies[0], Evidence()))
    lines = record.draft_lines(draft)
    text = (
        f"{record.counted(len(draft.entries), 'choice')} of "
        f"{record.counted(len(ledgers), 'process')}; the draft is in {written}"
    )
    return Outcome(
        judge.DONE,
        "draft",
        "\n".join([*lines, text]),
        written,
        details=record.draft_details(draft),
    )


def _policies(folders: Sequence[Path]) -> list[Values]:
    """What `[policy]` says of the profiles of these sessions, each once; of ledgers alone nothing.

    Raises `SessionError`.
    """
    found: dict[str, Values] = {}
    for folder in folders:
        if (folder / "session.json").exists():
            policy = apply.for_lock(session_dir.read(folder).settings.policy)
            found.setdefault(canonical(policy), policy)
    return list(found.values()) or [{}]


def _ledgers(folder: Path) -> list[ProcessLedger]:
    inner = folder / "ledger"
    if not folder.is_dir():
        raise LedgerError(f"{folder}: expected a folder of ledgers, found none")
    return read_ledgers(folder) if inner.is_dir() else list(read_folder(folder))
