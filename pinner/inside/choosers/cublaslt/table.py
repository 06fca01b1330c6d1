"""The locked algorithms as the file that the C library maps: `cublaslt.pins` of the session."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from ...faults import InvalidPin
from ...values import readable_named
from . import fields, layout

if TYPE_CHECKING:
    from typing import Any, Iterable, Mapping

FILE = "cublaslt.pins"


def build(entries: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the file of `{"problem": {…}, "algo": {…}, "blob": "hex"}` of a lock.

    Raises InvalidPin, naming what is wrong, for an entry that cannot be forced.
    """
    pins = [_named_pin(entry) for entry in entries]
    head = layout.Pins(
        magic=layout.PINS_MAGIC,
        layout=layout.digest(),
        pin_size=ctypes.sizeof(layout.Pin),
        count=len(pins),
    )
    return b"".join([bytes(head)] + [bytes(pin) for pin in pins])


def write(path: str, entries: Iterable[Mapping[str, Any]]) -> None:
    """Write the file, which then is whole or not there; several processes may do so at once."""
    content = build(entries)
    hidden = "%s.%d.%s" % (path, os.getpid(), os.urandom(4).hex())
    with open(hidden, "wb") as out:
        out.write(content)
    os.replace(hidden, path)


def _named_pin(entry: Mapping[str, Any]) -> Any:
    try:
        return _pin(entry)
    except InvalidPin as error:
        text = "%s (the problem with %s)" % (error, readable_named(entry["problem"]))
        raise InvalidPin(text) from None


def _pin(entry: Mapping[str, Any]) -> Any:
    problem = entry["problem"]
    pin = layout.Pin()
    pin.key.value[:] = fields.words(problem)
    pin.algo = layout.Algo.from_buffer_copy(_blob(entry["blob"]))
    for number, name in enumerate(layout.ALGO_NAMES):
        if name in entry["algo"]:
            pin.fields.value[number] = entry["algo"][name]
            pin.fields.known |= 1 << number
    pin.needs = entry["algo"].get("workspace", -1)
    pin.version = problem[fields.VERSION]
    pin.device = device(str(problem.get(fields.GPU, "")))
    return pin


def device(text: str) -> bytes:
    """Return the name of a GPU as it fits into a file."""
    return text.encode("utf-8")[: layout.TEXT - 1]


def _blob(text: Any) -> bytes:
    try:
        blob = bytes.fromhex(text)
    except (TypeError, ValueError):
        blob = b""
    if len(blob) != ctypes.sizeof(layout.Algo):
        raise InvalidPin(
            "expected the blob of an algorithm of cuBLASLt as 128 hexadecimal digits, found %r: "
            "record again" % (text,)
        )
    return blob
