"""Captures one call of numpy or scipy: its arguments, byte for byte, and digests of its results.

In the form of `capture`: `call.json` and pieces of memory beside it. Numbers of numpy are arrays
without axes there: they take part in a call with the same dtype.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
from typing import TYPE_CHECKING

from ...faults import EvidenceError
from .. import digest
from . import capture
from .capture import NotCaptured

if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from .array_facts import Facts
    from .capture import Awaited

_MOST_ALIGNED = 64
_GRAIN = 16
# They are read by numpy and by what it computes with.
_VARIABLES = (
    *("NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "NPY_PROMOTION_STATE"),
    *("OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"),
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_NUM_THREADS", "MKL_DYNAMIC"),
    *("BLIS_NUM_THREADS", "BLIS_ARCH_TYPE"),
)


class ArrayCall:
    """One call on its way into a folder."""

    def __init__(self, awaited: Awaited, numpy: Any, facts: Facts) -> None:
        self._awaited = awaited
        self._numpy = numpy
        self._arrays: List[Tuple[str, Any]] = []
        self._numbers: Dict[int, int] = {}
        self._call: Dict[str, Any] = {"function": facts.name, "module": facts.module}
        self._writes = facts.writes
        self._written: List[Any] = []
        self._table: List[Dict[str, Any]] = []
        self._pieces: List[bytes] = []
        self._why = ""

    def before(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        """The call is about to run with these."""
        try:
            call = self._call
            call["args"] = [self._value("x%d" % at, value) for at, value in enumerate(args)]
            call["kwargs"] = {name: self._value(name, each) for name, each in kwargs.items()}
            if self._writes and args and isinstance(args[0], self._numpy.ndarray):
                self._written = [args[0]]
            call["written"] = [self._numbers[id(each)] for each in self._written]
            self._read()
        except NotCaptured as error:
            self._why = str(error)

    def after(self, result: Any) -> None:
        """The call gave this: it is written down, whole or not at all."""
        single = not isinstance(result, (list, tuple))
        self._call["single"] = single
        results = [] if result is None else [result] if single else list(result)
        self._call["results"] = [self._result(each) for each in results]
        self._call["digests"] = [self._digest(each) for each in self._written]
        self._write()

    def _result(self, value: Any) -> Any:
        kinds = (self._numpy.ndarray, self._numpy.generic, float, int, complex)
        return {"digest": self._digest(value)} if isinstance(value, kinds) else None

    def _digest(self, value: Any) -> Optional[str]:
        try:
            return digest.digest(self._numpy.asarray(value), digest.SHA256)[0]
        except EvidenceError:
            return None

    # -- arguments ------------------------------------------------------------------------------

    def _value(self, name: str, value: Any) -> Any:
        """An argument as `capture.Capture.value` has it. Raises NotCaptured."""
        numpy = self._numpy
        if value is None or type(value) in (bool, int, str):
            return value
        if isinstance(value, (numpy.ndarray, numpy.generic)):
            return ["tensor", self._take(name, value)]
        if type(value) is float:
            return ["float", value.hex()]
        if type(value) is complex:
            return ["complex", value.real.hex(), value.imag.hex()]
        if isinstance(value, (list, tuple)):
            word = "list" if isinstance(value, list) else "tuple"
            return [word] + [self._value("%s_%d" % (name, n), v) for n, v in enumerate(value)]
        if type(value) is dict and all(type(key) is str for key in value):
            return ["dict"] + [[key, self._value(name + "_" + key, v)] for key, v in value.items()]
        return ["named", self._named(name, value)]

    def _named(self, name: str, value: Any) -> str:
        numpy = self._numpy
        if value is Ellipsis:
            return "Ellipsis"
        if isinstance(value, slice):
            parts = value.start, value.stop, value.step
            if all(each is None or isinstance(each, int) for each in parts):
                return "slice(%r, %r, %r)" % parts
        if isinstance(value, numpy.dtype) and value.names is None and not value.hasobject:
            return 'numpy.dtype("%s")' % value.str
        if isinstance(value, type):
            own = str(value.__name__)
            if any(value is each for each in (float, int, bool, complex)):
                return own
            if vars(numpy).get(own) is value:
                return "numpy." + own
        if value is getattr(numpy, "_NoValue", numpy):
            return "numpy._NoValue"
        found = type(value)
        raise NotCaptured(
            "its argument %s is a %s.%s, which is not written down"
            % (name, found.__module__, found.__qualname__)
        )

    def _take(self, name: str, value: Any) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            array = self._numpy.asarray(value)
            self._check(name, value, array)
            number = self._numbers[id(value)] = len(self._arrays)
            self._arrays.append((name, array))
        return number

    def _check(self, name: str, value: Any, array: Any) -> None:
        own = (self._numpy.ndarray, self._numpy.generic, getattr(self._numpy, "memmap", None))
        what = ""
        if isinstance(value, self._numpy.ndarray) and type(value) not in own:
            what = "it is a %s, not a plain array" % type(value).__qualname__
        elif array.dtype.hasobject or array.dtype.names is not None:
            what = "its dtype is %s" % array.dtype
        elif not array.dtype.isnative:
            what = "its bytes are in the other order"
        elif any(step % array.itemsize for step in array.strides):
            what = "its strides are no multiples of its elements"
        if what:
            raise NotCaptured("the array %s cannot be written down: %s" % (name, what))

    # -- memory ---------------------------------------------------------------------------------

    def _read(self) -> None:
        for group in _groups([array for _, array in self._arrays]):
            start = min(each[0] for each in group)
            end = max(each[1] for each in group)
            before = 0
            if len({self._arrays[number][1].dtype for _, _, number in group}) > 1:
                before = start % _GRAIN  # so that what is aligned is at a multiple of its size
            self._pieces.append(bytes(before) + ctypes.string_at(start, end - start))
            for _, _, number in group:
                self._table.append(self._described(number, start - before))
        self._table.sort(key=lambda each: int(each["number"]))

    def _described(self, number: int, start: int) -> Dict[str, Any]:
        name, array = self._arrays[number]
        address = array.__array_interface__["data"][0]
        size = array.itemsize
        if array.size and (address - start) % size:
            raise NotCaptured(
                "the array %s cannot be written down: it shares memory that is not a multiple of "
                "its elements" % name
            )
        return {
            "number": number,
            "name": name,
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            "strides": [step // size for step in array.strides],
            "offset": (address - start) // size if array.size else 0,
            "piece": len(self._pieces) - 1,
            "device": "cpu",
            "alignment": min(address & -address, _MOST_ALIGNED) if address else _MOST_ALIGNED,
            "conjugated": False,
            "negated": False,
        }

    def _write(self) -> None:
        awaited = self._awaited
        table: Dict[str, Any] = {
            "version": capture.VERSION,
            "kind": awaited.kind,
            "name": awaited.name,
        }
        for name in ("numpy", "scipy"):
            table[name] = str(getattr(sys.modules.get(name), "__version__", ""))
        files: Dict[str, bytes] = {}
        if self._why:
            table["why"] = self._why
        else:
            environ = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
            table.update(settings={}, environ=environ, generators=[], form="arrays")
            table.update(call=self._call, tensors=self._table)
            table["pieces"] = [hashlib.sha256(piece).hexdigest() for piece in self._pieces]
            files = {"%d.bin" % at: piece for at, piece in enumerate(self._pieces)}
        files[capture.TABLE] = json.dumps(table).encode("ascii")
        capture.write_folder(awaited.folder, files)


def _groups(arrays: List[Any]) -> List[List[Tuple[int, int, int]]]:
    """(start, end, number) of arrays whose memory overlaps, as addresses."""
    found: List[List[Tuple[int, int, int]]] = []
    reached = -1
    for span in sorted((*_span(array), number) for number, array in enumerate(arrays)):
        start, end, _ = span
        if start < reached and end > start:
            found[-1].append(span)
        else:
            found.append([span])
        reached = max(reached, end)
    return found


def _span(array: Any) -> Tuple[int, int]:
    address = array.__array_interface__["data"][0]
    if not array.size:
        return address, address
    reach = [(size - 1) * step for size, step in zip(array.shape, array.strides)]
    low = sum(each for each in reach if each < 0)
    high = sum(each for each in reach if each > 0)
    return address + low, address + high + array.itemsize
