"""How the outputs of a repro differ between two stacks: how many elements, the first one, its bits.

The outputs are fetched from `outputs()` of repro.py, in each stack, and compared here.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pinner.compare.tensor_bytes import BytesError, Comparison, compare_files
from pinner.inside.evidence.kept_bytes import NAMES
from stackbisect.repro import form
from stackbisect.repro.stacks import Stack

_SCRIPT = "outputs_of_repro.py"
_TABLE = "outputs_of_repro.json"
# Runs in the stack; knows torch and numpy by what they offer, and imports neither.
_SOURCE = b"""
import json
import sys

sys.path.insert(0, "")
import repro


def plain(value):
    if hasattr(value, "detach"):
        import torch

        flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        return str(value.dtype)[6:], list(value.shape), bytes(flat.view(torch.uint8).tolist())
    return value.dtype.name, list(value.shape), value.tobytes()


rows = []
for name, value in repro.outputs().items():
    dtype, shape, data = plain(value)
    with open("output-%d.bytes" % len(rows), "wb") as out:
        out.write(data)
    rows.append([name, dtype, shape])
with open("outputs_of_repro.json", "w") as out:
    json.dump(rows, out)
"""


@dataclass(frozen=True)
class Output:
    """One output, as a stack gave it. data: in C order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def outputs(
    content: Mapping[str, bytes], stack: Stack, *, time_limit: float | None = None
) -> list[Output]:
    """The outputs of a repro (its files) in a stack. Raises FormError where it gives none."""
    given = {**content, _SCRIPT: _SOURCE}
    ran = stack.run(given, ("python", _SCRIPT), time_limit=time_limit)
    if ran.failure or _TABLE not in ran.files:
        why = ran.failure or "it left no outputs"
        raise form.FormError(f"the outputs of the repro in the {stack.name} stack: {why}")
    rows = json.loads(ran.files[_TABLE])
    return [
        Output(name, dtype, tuple(shape), ran.files.get(f"output-{number}.bytes", b""))
        for number, (name, dtype, shape) in enumerate(rows)
    ]


def difference(good: list[Output], bad: list[Output]) -> form.Difference | None:
    """How they differ, from the first output that does.

    None where none does, or where it has another dtype or shape in the other stack. Raises
    FormError for a dtype that is not known.
    """
    others = {each.name: each for each in bad}
    for one in good:
        other = others.get(one.name)
        if other is None or one == other:
            continue
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return None
        found = _compared(one, other).differences
        if found:
            first = found[0]
            return form.Difference(first.differing, first.place, first.values, first.ulp, one.name)
    return None


def _compared(one: Output, other: Output) -> Comparison:
    with tempfile.TemporaryDirectory(prefix="stackbisect-") as folder:
        paths = Path(folder, "good"), Path(folder, "bad")
        for path, each in zip(paths, (one, other), strict=True):
            path.write_bytes(_file(each))
        try:
            return compare_files(*paths)
        except BytesError as error:
            raise form.FormError(f"output {one.name!r}: {error}") from error


def _file(output: Output) -> bytes:
    """The output as a file of kept bytes."""
    if output.dtype not in NAMES:
        raise form.FormError(
            f"output {output.name!r}: expected one of {', '.join(NAMES)}, found {output.dtype!r}"
        )
    entry = {
        "dtype": NAMES[output.dtype],
        "shape": list(output.shape),
        "data_offsets": [0, len(output.data)],
    }
    head = json.dumps({output.name: entry}).encode()
    return len(head).to_bytes(8, "little") + head + output.data
