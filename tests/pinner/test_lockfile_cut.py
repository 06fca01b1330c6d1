"""Case P5: a file cut at any byte is refused with its place: never read, never a crash."""

from __future__ import annotations

import os
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pinner.inside import pins
from pinner.inside.faults import StartFault
from pinner.lockfile.codec import dumps, loads, read_lock
from pinner.lockfile.compiled import pins_text
from pinner.lockfile.errors import LockError
from tests import locks

# Twelve entries, so that a cut count ("1") is a number too; no fallback behind the last ones.
MANY = dumps(locks.full_lock(range(12)))
PLAIN = dumps(locks.lock(*(locks.entry(size) for size in range(12))))
# The tables of the other choosers, ten of them, and none of Triton's before them.
OTHERS = dumps(replace(locks.every_chooser(range(3)), triton=(), fallbacks=()))


def _line_at(data: bytes, offset: int) -> int:
    """The line of the last byte before ``offset``, from 1."""
    return data.count(b"\n", 0, max(offset - 1, 0)) + 1


@pytest.mark.parametrize(
    "text", [MANY, PLAIN, OTHERS], ids=["every field", "required fields only", "other choosers"]
)
def test_a_cut_at_every_byte_offset_is_refused_and_named(tmp_path: Path, text: str) -> None:
    data = text.encode()
    path = tmp_path / "pinner.lock.toml"
    path.write_bytes(data)
    for offset in reversed(range(len(data))):
        os.truncate(path, offset)
        with pytest.raises(LockError) as caught:
            read_lock(path)
        error = caught.value
        assert str(error).startswith(f"{path}:{error.line}: ")
        assert error.line is not None
        # Where the cut leaves valid TOML, or half a character, the place named is the cut itself.
        assert 1 <= error.line <= _line_at(data, offset) + 1


@pytest.mark.parametrize(
    "text", [MANY, PLAIN, OTHERS], ids=["every field", "required fields only", "other choosers"]
)
def test_a_cut_that_an_editor_closed_with_a_newline_is_refused(text: str) -> None:
    for offset in range(len(text) - 1):
        with pytest.raises(LockError):
            loads(text[:offset] + "\n", "x")


def test_some_of_these_cuts_are_valid_toml_and_name_the_entry_they_end_in() -> None:
    head, _, _ = PLAIN.partition("[[triton]]\n")
    whole_entries = PLAIN[: PLAIN.rindex("[[triton]]")]
    with pytest.raises(LockError) as caught:
        loads(whole_entries, "x")
    assert caught.value.entry == "[[triton]] entry 11"
    with pytest.raises(LockError) as caught:
        loads(head, "x")
    assert (caught.value.entry, caught.value.line) == ("", head.count("\n"))


def test_an_entry_that_is_lost_from_the_middle_is_missed() -> None:
    entries = re.split(r"(?=^\[\[triton\]\]$)", PLAIN, flags=re.MULTILINE)
    assert len(entries) == 13
    for lost in range(1, 12):
        text = "".join(entries[:lost] + entries[lost + 1 :])
        with pytest.raises(LockError, match=r"expected 12 .* found 11"):
            loads(text, "x")


def test_an_entry_of_any_chooser_that_is_lost_is_missed() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    text = dumps(locks.every_chooser(range(4)))
    parts = re.split(
        r"(?=^\[\[(?:triton|inductor|cublaslt|setting)\]\]$)", text, flags=re.MULTILINE
    )
    assert len(parts) == 1 + 4 + 5 + 4 + 3
    last_of_triton = 4  # its fallback goes with it
    lost = random.Random(seed).choice([n for n in range(1, len(parts) - 1) if n != last_of_triton])
    with pytest.raises(LockError, match=r"expected 16 .* found 15"):
        loads("".join(parts[:lost] + parts[lost + 1 :]), "x")


def test_the_whole_file_is_read() -> None:
    assert len(loads(MANY, "x").triton) == len(loads(PLAIN, "x").triton) == 12
    assert loads(OTHERS, "x").count == 10


def test_pins_that_were_cut_at_any_byte_are_refused_by_the_process(tmp_path: Path) -> None:
    text = pins_text(locks.every_chooser((1,)), "sha256:1")
    path = tmp_path / "pins.json"
    path.write_text(text, encoding="ascii")
    for offset in reversed(range(len(text) - 1)):  # the newline is no part of the object
        os.truncate(path, offset)
        with pytest.raises(StartFault, match="torn"):
            pins.read(str(path))
