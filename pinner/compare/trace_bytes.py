"""The bytes of a mismatch, where both traces kept them: how many elements differ, and how far.

`DIR/rank-R/bytes/ALGORITHM-DIGEST.safetensors` is what pinner/inside/evidence/trace/keeping.py
leaves: one file for each digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pinner.compare.tensor_bytes import BytesError, Difference, compare_files
from pinner.compare.trace import Log, Tensor
from pinner.compare.trace_pair import Mismatch, TensorDiff
from pinner.inside.evidence.trace.keeping import FOLDER, FULL, file_name

_MOST = 8  # tensors of one call that are looked into
# Kinds of events whose values the tracer does not hold in its hands.
_NEVER_KEPT = {"step": "values of streams", "random": "states of random number generators"}


@dataclass(frozen=True)
class Figures:
    """What the bytes of one differing tensor say. name: such as "output 0".

    differences: one for each of its parts that differs; a plain tensor is one part. missing: why
    there is none, or what has no counterpart; "" where all was compared.
    """

    name: str
    differences: tuple[Difference, ...] = ()
    missing: str = ""

    @property
    def lines(self) -> Iterator[str]:
        """For people."""
        yield from (f"bytes: {difference.line()}" for difference in self.differences)
        if self.missing:
            yield f"bytes: {self.name}: {self.missing}"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "tensor": self.name,
            "differences": [_json(difference) for difference in self.differences],
            "missing": self.missing or None,
        }


def figures(mismatch: Mismatch, first: Log, second: Log) -> tuple[Figures, ...]:
    """What the kept bytes say of the tensors of a mismatch; nothing where neither trace kept any.

    Bytes that cannot be read are no error: `missing` says why.
    """
    folders = _folder(first), _folder(second)
    if not any(folder.is_dir() for folder in folders):
        return ()
    if mismatch.first.kind in _NEVER_KEPT:
        kind = _NEVER_KEPT[mismatch.first.kind]
        return (Figures(mismatch.first.name, missing=f"{kind} are not kept, only their digests"),)
    return tuple(_of(diff, folders) for diff in mismatch.diffs[:_MOST])


def _folder(log: Log) -> Path:
    return log.path.parent / FOLDER


def _of(diff: TensorDiff, folders: tuple[Path, Path]) -> Figures:
    name = f"{diff.side} {diff.path}"
    sides = (diff.first, diff.second)
    files = [_file(tensor, folder) for tensor, folder in zip(sides, folders, strict=True)]
    lost = [
        f"not kept in {side}{_because(tensor, folder)}"
        for side, tensor, folder, file in zip("AB", sides, folders, files, strict=True)
        if file is None
    ]
    first, second = files
    if first is None or second is None:
        return Figures(name, missing="; ".join(lost))
    try:
        found = compare_files(first, second)
    except BytesError as error:
        return Figures(name, missing=str(error))
    named = tuple(replace(each, name=_named(name, each.name)) for each in found.differences)
    if not named and not found.unlike:
        return Figures(name, missing="the kept bytes are equal, though the digests are not")
    return Figures(name, named, "; ".join(found.unlike))


def _file(tensor: Tensor, folder: Path) -> Path | None:
    if tensor.digest is None or "/" in tensor.digest:
        return None
    file = folder / file_name(tensor.digest)
    return file if file.is_file() else None


def _because(tensor: Tensor, folder: Path) -> str:
    if tensor.digest is None:
        return " (it was not hashed)"
    if not folder.is_dir():
        return " (it was traced without --keep-bytes)"
    try:
        return f" ({(folder / FULL).read_text(encoding='utf-8').strip()}: narrow the window)"
    except (OSError, ValueError):
        return ""


def _named(name: str, part: str) -> str:
    """The part of a tensor that is made of several: "value.1" is the second one."""
    _, _, number = part.partition(".")
    return f"{name}, part {number}" if number else name


def _json(difference: Difference) -> dict[str, Any]:
    return {
        "name": difference.name,
        "dtype": difference.dtype,
        "shape": list(difference.shape),
        "elements": difference.elements,
        "differing": difference.differing,
        "first": difference.first,
        "index": list(difference.place),
        "hex": list(difference.values),
        "ulp": difference.ulp,
        "most_ulp": difference.most_ulp,
        "most_ulp_at": difference.most_ulp_at,
        "not_numbers": difference.not_numbers,
        "rows": difference.rows,
        "first_rows": list(difference.first_rows),
    }


def lines(found: Sequence[Figures]) -> Iterator[str]:
    """All of them for people."""
    for each in found:
        yield from each.lines
