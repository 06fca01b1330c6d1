"""Reads back the call that a session captured (pinner/inside/evidence/trace/capture.py)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pinner.inside.evidence.trace import capture as inside
from stackbisect.repro.calls import (
    ITEMSIZE,
    Array,
    Generator,
    Listed,
    Named,
    Ref,
    Step,
    Table,
    Value,
)
from stackbisect.repro.extract import NoCase

FOLDER = inside.FOLDER


@dataclass(frozen=True)
class Captured:
    """One call. form: which reader understands `call`. tensors: rows of the table; see `arrays`.

    before: calls that came right before it.
    """

    form: str
    name: str
    call: Mapping[str, Any]
    tensors: tuple[Mapping[str, Any], ...]
    pieces: tuple[bytes, ...]
    settings: Mapping[str, Any]
    environ: Mapping[str, str]
    generators: tuple[bytes, ...]
    table: Mapping[str, Any]
    before: tuple[Captured, ...] = ()

    def arrays(self, names: Mapping[int, str]) -> dict[str, Array]:
        """The tensors by the names that `names` gives their numbers; sharers after their owner.

        Raises KeyError for a dtype that is not known.
        """
        owners: dict[int, int] = {}
        for row in self.tensors:
            owner = owners.setdefault(row["piece"], row["number"])
            if _size(row) > _size(self.tensors[owner]):
                owners[row["piece"]] = row["number"]
        sorted_rows = sorted(self.tensors, key=lambda row: owners[row["piece"]] != row["number"])
        found = {}
        for row in sorted_rows:
            owner = owners[row["piece"]]
            mine = owner == row["number"]
            found[names[row["number"]]] = Array(
                dtype=row["dtype"],
                shape=tuple(row["shape"]),
                strides=tuple(row["strides"]),
                offset=row["offset"],
                data=self.pieces[row["piece"]] if mine else b"",
                device=row["device"],
                alignment=row["alignment"],
                alias="" if mine else names[owner],
            )
        return found

    def value(self, packed: Any, tensor: Callable[[int], Value]) -> Value:
        """An argument as it was packed; `tensor` says what stands for a tensor's number."""
        if not isinstance(packed, list):
            plain: Value = packed
            return plain
        word, *rest = packed

        def inner(each: Any) -> Value:
            return self.value(each, tensor)

        if word == "tensor":
            return tensor(rest[0])
        if word == "float":
            return float.fromhex(rest[0])
        if word == "complex":
            return complex(*map(float.fromhex, rest))
        if word == "named":
            return Named(rest[0])
        if word == "list":
            return Listed(tuple(map(inner, rest)))
        if word == "tuple":
            return tuple(map(inner, rest))
        if word == "dict":
            return Table(tuple((name, inner(each)) for name, each in rest))
        if word == "generator":
            return Generator(self.generators[rest[0]], rest[1])
        raise ValueError(f"expected a packed value, found {word!r}")

    def step(
        self,
        names: Mapping[int, str],
        refs_of: Mapping[int, Ref],
        results: Sequence[tuple[str, Any]],
    ) -> tuple[Step, dict[str, str | None]]:
        """This call in a program, and the digests of what it gives and of what it writes over.

        names: the input of each tensor, by its number; refs_of: what stands for it as an argument.
        results: a name for each result, "" for one that is no output, and what is known of it.
        """
        call = self.call

        def value(packed: Any) -> Value:
            return self.value(packed, lambda number: refs_of[number])

        step = Step(
            target=call["function"],
            args=tuple(map(value, call["args"])),
            kwargs={name: value(each) for name, each in call["kwargs"].items()},
            results=tuple(name for name, _ in results),
            single=call["single"],
        )
        expected = {name: each["digest"] for name, each in results if name}
        for number, digest in zip(call["written"], call["digests"], strict=True):
            expected[names[number]] = digest
        return step, expected


def _size(row: Mapping[str, Any]) -> int:
    return ITEMSIZE[row["dtype"]]


def read(session: Path, name: str) -> Captured | NoCase:
    """The only call in a session's folder, or why there is none."""
    folder = session / FOLDER
    found = sorted(p for p in folder.iterdir() if p.name[0] != ".") if folder.is_dir() else []
    if not found:
        return NoCase(
            f"{name} did not come again when it was to be captured: the command does not do the "
            "same in each run, or it ended before the call did"
        )
    if len(found) > 1:
        return NoCase(
            f"{len(found)} processes of the command made this call, and which of them the trace "
            "means is not known; trace one of them alone"
        )
    table = json.loads((found[0] / inside.TABLE).read_bytes())
    if table["version"] != inside.VERSION:
        return NoCase(f"its call was captured by another version of pinner ({table['version']})")
    if "why" in table:
        return NoCase(f"the call cannot be captured: {table['why']}")
    try:
        before = tuple(_part(found[0], table, each) for each in table.get("before", ()))
        return replace(_part(found[0], table, table), before=before)
    except _Damaged as damaged:
        return NoCase(f"what was captured of {name} is damaged: {damaged}; run it again")


class _Damaged(Exception):
    """A file is not what was written."""


def _part(folder: Path, table: Mapping[str, Any], part: Mapping[str, Any]) -> Captured:
    """One call of a folder: the one that was asked for, or one before it."""
    pieces = []
    for number, digest in enumerate(part["pieces"], start=part.get("first", 0)):
        name = f"{number}.bin"
        data = (folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise _Damaged(name)
        pieces.append(data)
    return Captured(
        form=table["form"],
        name=part["call"].get("function", table["name"]),
        call=part["call"],
        tensors=tuple(part["tensors"]),
        pieces=tuple(pieces),
        settings=table.get("settings", {}),
        environ=table.get("environ", {}),
        generators=tuple(map(bytes.fromhex, part["generators"])),
        table=table,
    )
