"""How the switches of other libraries stood: merged over the processes of a run, and held against
a lock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pinner.inside.policy import CHOOSER, ENV, LATER, values_in
from pinner.inside.stack_rules import SEPARATOR
from pinner.inside.values import Encoded, canonical, readable

from .conflicts import together
from .ledgers import ProcessRecord, SettingRecord
from .schema import Held, Lock, Setting, Values

State = Literal["held", "differs", "not enforceable", "new"]

# What counts where processes say different things of one setting: the least that holds it.
_LEAST_FIRST = ("no", "recorded", "forced", "set")


@dataclass(frozen=True)
class SettingConflict:
    """A setting for which the processes of one run have several values."""

    chooser: str
    name: str
    values: tuple[tuple[Encoded, tuple[str, ...]], ...]

    def __str__(self) -> str:
        listed = "; ".join(
            f"{readable(value)} on {together(processes)}" for value, processes in self.values
        )
        return f"{self.chooser} {self.name}: {listed}"


@dataclass(frozen=True)
class Merged:
    """The settings of one run. policy: what was switched for recording, by ``CHOOSER.NAME``."""

    policy: Values
    settings: tuple[Setting, ...]
    conflicts: tuple[SettingConflict, ...]


@dataclass(frozen=True)
class Row:
    """What became of one setting in a run under a lock.

    locked: the value in the lock, None where it has none; value: that of the processes named.
    held: as the processes said it. text: what they said of it, or what is wrong.
    """

    chooser: str
    name: str
    state: State
    held: str
    locked: Encoded | None
    value: Encoded
    text: str
    processes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "processes": list(self.processes)}


class SeenSettings:
    """What the processes said of each setting; the last word of a process counts."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], dict[int, SettingRecord]] = {}
        self._processes: dict[int, tuple[ProcessRecord, str]] = {}

    def add(self, record: SettingRecord, process: ProcessRecord, number: int) -> None:
        self._said.setdefault((record.chooser, record.name), {})[number] = record
        self._processes[number] = (process, process.name)

    def merged(self, names: Sequence[str]) -> Merged:
        """names: what each process is called, by number."""
        policy: dict[str, Encoded] = {}
        settings, conflicts = [], []
        for (chooser, name), said in sorted(self._said.items()):
            values = self._values(said, names)
            held, text = self._held(said)
            if len(values) > 1:
                conflicts.append(SettingConflict(chooser, name, values))
            if held == "set":
                policy[f"{chooser}.{name}"] = _switch_value(chooser, name, values)
                continue
            kept: Held = held  # type: ignore[assignment]  # "set" has gone
            value = values[0][0] if kept == "forced" else _combined(values)
            settings.append(Setting(chooser, name, value, kept, text))
        return Merged(policy, tuple(settings), tuple(conflicts))

    def rows(self, lock: Lock) -> tuple[Row, ...]:
        """Each setting of the run against the lock; those of choosers that were idle have none."""
        locked = {setting.identity: setting for setting in lock.settings}
        found = []
        for (chooser, name), said in sorted(self._said.items()):
            for number, record in self._distinct(said):
                names = tuple(
                    self._processes[each][1]
                    for each in self._ordered(said)
                    if _same(said[each], said[number])
                )
                found.append(_row(record, locked.get((chooser, name)), lock.policy, names))
        return tuple(found)

    def _ordered(self, numbers: Iterable[int]) -> list[int]:
        return sorted(numbers, key=lambda number: self._processes[number][0].order)

    def _distinct(self, said: dict[int, SettingRecord]) -> list[tuple[int, SettingRecord]]:
        first: dict[tuple[str, str], int] = {}
        for number in self._ordered(said):
            first.setdefault((canonical(said[number].value), said[number].held), number)
        return [(number, said[number]) for number in first.values()]

    def _values(
        self, said: dict[int, SettingRecord], names: Sequence[str]
    ) -> tuple[tuple[Encoded, tuple[str, ...]], ...]:
        """The values and who has them, that of the first process first."""
        having: dict[str, tuple[Encoded, list[str]]] = {}
        for number in self._ordered(said):
            value = said[number].value
            having.setdefault(canonical(value), (value, []))[1].append(names[number])
        return tuple((value, tuple(processes)) for value, processes in having.values())

    def _held(self, said: dict[int, SettingRecord]) -> tuple[str, str]:
        """The least that any process said, and the first one's text of it."""
        ordered = [said[number] for number in self._ordered(said)]
        least = min(ordered, key=lambda record: _LEAST_FIRST.index(record.held))
        return least.held, least.text


def _same(one: SettingRecord, other: SettingRecord) -> bool:
    return one.held == other.held and canonical(one.value) == canonical(other.value)


def _combined(values: Sequence[tuple[Encoded, tuple[str, ...]]]) -> Encoded:
    """One value, or all that were seen as one text, as hard facts of the stack are kept."""
    if len(values) == 1:
        return values[0][0]
    return SEPARATOR.join(sorted(readable(value) for value, _ in values))


def _switch_value(
    chooser: str, name: str, values: Sequence[tuple[Encoded, tuple[str, ...]]]
) -> Encoded:
    """The value of the first process; of a variable under a profile all, as programs give their
    children other ones."""
    first, *others = [value for value, _ in values]
    if chooser != CHOOSER or not name.startswith(ENV) or not others:
        return first
    return [first, *sorted(others, key=canonical)]


def _row(
    record: SettingRecord, locked: Setting | None, policy: Values, names: tuple[str, ...]
) -> Row:
    state, value, text = _judged(record, locked, policy)
    return Row(record.chooser, record.name, state, record.held, value, record.value, text, names)


def _judged(
    record: SettingRecord, locked: Setting | None, policy: Values
) -> tuple[State, Encoded | None, str]:
    if record.held == "set":
        return _switched(record, policy)
    if record.held == "no" or (locked is not None and locked.held == "no"):
        forced = locked is not None and locked.held == "forced"
        if locked is not None and forced:
            return "differs", locked.value, f"the lock forces it, here nothing does: {record.text}"
        value = None if locked is None else locked.value
        return "not enforceable", value, record.text or (locked.note if locked else "")
    if locked is None:
        return "new", None, "active here and not in the lock: record again"
    if _is_one_of(record.value, locked):
        return "held", locked.value, ""
    verb = "forces" if locked.held == "forced" else "was recorded with"
    text = f"the lock {verb} {readable(locked.value)}, found {readable(record.value)}"
    return "differs", locked.value, text


def _switched(record: SettingRecord, policy: Values) -> tuple[State, Encoded | None, str]:
    """A switch that pinner sets by itself, recording and enforcing alike."""
    name = f"{record.chooser}.{record.name}"
    if name not in policy and record.name.endswith(LATER):
        text = f"the program itself set it to {readable(record.value)}; it did not when recorded"
        return "differs", None, text
    if name not in policy:
        return "new", None, "this pinner sets it, the lock was recorded without it"
    locked = values_in(record.name, policy[name]) if record.chooser == CHOOSER else [policy[name]]
    if canonical(record.value) in map(canonical, locked):
        return "held", policy[name], ""
    here = "here it is" if record.chooser == CHOOSER else "this pinner sets"
    text = (
        f"the lock was recorded with {name} = {_plain(policy[name])}, {here} {_plain(record.value)}"
    )
    return "differs", policy[name], text


def _is_one_of(value: Encoded, locked: Setting) -> bool:
    """Equal, or one of several that the recording saw on its ranks."""
    if canonical(value) == canonical(locked.value):
        return True
    several = isinstance(locked.value, str) and SEPARATOR in locked.value
    return (
        locked.held == "recorded"
        and several
        and readable(value) in str(locked.value).split(SEPARATOR)
    )


def _plain(value: Encoded) -> str:
    """As it stands in the lockfile."""
    return canonical(value) if isinstance(value, (bool, int, float, str)) else readable(value)
