"""One operation on its way through the dispatcher: what goes in, comes out, and is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .operations import SUBCLASSES_WITHOUT_BYTES

if TYPE_CHECKING:
    from typing import Any, Dict, List, Sequence, Tuple

    from .operations import Facts
    from .recorder import Recorder

_PATHS = tuple(str(number) for number in range(256))


class Passing:
    """One call of an operation: `before` reads inputs; `after` reads outputs and writes it down."""

    __slots__ = (
        "args",
        "facts",
        "ins",
        "kind",
        "kwargs",
        "lines",
        "notes",
        "numbers",
        "out_paths",
        "outs",
        "paths",
        "recorder",
        "tensors",
    )

    def __init__(
        self,
        recorder: Recorder,
        facts: Facts,
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
        kind: type,
    ) -> None:
        self.recorder = recorder
        self.facts = facts
        self.args = args
        self.kwargs = kwargs
        self.kind = kind
        self.notes: Dict[str, Any] = {}
        self.numbers: List[int] = []
        self.paths: List[str] = []
        self.tensors: List[Any] = []
        self.out_paths: List[str] = []
        self.outs: List[Any] = []
        self.ins: List[str] = []
        self.lines: List[str] = []

    def before(self) -> None:
        """Read the inputs: the operation may change them."""
        kind, paths, tensors = self.kind, self.paths, self.tensors
        for at, value in enumerate(self.args):
            if isinstance(value, kind):
                paths.append(_PATHS[at])
                tensors.append(value)
            elif type(value) in (list, tuple):
                self._take(paths, tensors, _PATHS[at], value)
        for name, value in self.kwargs.items():
            if isinstance(value, kind):
                paths.append("kw." + name)
                tensors.append(value)
            elif type(value) in (list, tuple):
                self._take(paths, tensors, "kw." + name, value)
        if tensors:
            number = self.recorder.memory.number
            self.numbers = [number(tensor) for tensor in tensors]
            if not self.facts.pure:
                self.ins = self._entries(paths, tensors, self.numbers)

    def after(self, result: Any, place: Tuple[str, str]) -> None:
        """Read the outputs, follow their memory, write the event."""
        recorder, facts, notes = self.recorder, self.facts, self.notes
        paths, outs = self.out_paths, self.outs
        if isinstance(result, self.kind):
            paths.append("0")
            outs.append(result)
        elif isinstance(result, (list, tuple)):
            for at, value in enumerate(result):
                if isinstance(value, self.kind):
                    paths.append(str(at))
                    outs.append(value)
                elif isinstance(value, (list, tuple)):
                    self._take(paths, outs, str(at), value)
        if outs and _has_no_bytes(outs[0]):
            return
        memory = recorder.memory
        known = set(self.numbers)
        extra = ""
        if facts.writes:
            self._note_writes()
        elif facts.view:
            notes["view"] = True
            extra = '{"view":true}'
        numbers = [memory.fresh(tensor, known) for tensor in outs]
        skipped: List[bool] = []
        if facts.empty or facts.non_blocking >= 0 or memory.unwritten:
            skipped = self._incomplete(numbers)
        if facts.pure:
            self._read_all(numbers, skipped)
        elif outs:
            self.lines = self._entries(paths, outs, numbers, skipped)
        if len(notes) != 1:
            extra = ""
        if recorder.calls is not None:
            recorder.tell_calls(facts.name, self.ins, self.lines, [*self.tensors, *self.outs])
        recorder.event("op", facts.name, place, self.ins, self.lines, notes=notes, extra=extra)

    def _read_all(self, numbers: List[int], skipped: List[bool]) -> None:
        """Inputs and outputs at once: the inputs are what they were before."""
        count = len(self.tensors)
        if skipped:
            skipped = [False] * count + skipped
        lines = self._entries(
            self.paths + self.out_paths,
            self.tensors + self.outs,
            self.numbers + numbers,
            skipped,
        )
        self.ins, self.lines = lines[:count], lines[count:]

    def _entries(
        self,
        paths: List[str],
        tensors: List[Any],
        numbers: List[int],
        skipped: Sequence[bool] = (),
    ) -> List[str]:
        return self.recorder.numbered(
            paths, tensors, numbers, self.notes, skipped=skipped, below=True
        )

    def _take(self, paths: List[str], tensors: List[Any], path: str, values: Any) -> None:
        for number, part in enumerate(values):
            if isinstance(part, self.kind):
                paths.append("%s.%d" % (path, number))
                tensors.append(part)

    def _note_writes(self) -> None:
        """What an operation changed in place is of its outputs, whether it returns that or not."""
        names = set()
        for at, name in self.facts.writes:
            names.add(str(at))
            names.add("kw." + name)
        written = []
        for path, tensor in zip(self.paths, self.tensors):
            whole = path if path in names else path.rpartition(".")[0]
            if whole not in names:
                continue
            written.append(path)
            if not any(out is tensor for out in self.outs):
                self.out_paths.append("arg." + path)
                self.outs.append(tensor)
        self.notes["writes"] = written

    def _incomplete(self, numbers: List[int]) -> List[bool]:
        """Follow what was made empty, what was written, and what is still on its way."""
        memory, facts, outs, notes = self.recorder.memory, self.facts, self.outs, self.notes
        if facts.empty or (facts.copies and self._takes_garbage()):
            for tensor, number in zip(outs, numbers):
                memory.made_empty(tensor, number)
        elif facts.overwrites:
            for tensor, number in zip(outs, numbers):
                memory.written(tensor, number)
        if not facts.is_non_blocking(self.args, self.kwargs):
            return []
        skipped = [tensor.device.type == "cpu" for tensor in outs]
        for number, late in zip(numbers, skipped):
            if late:
                notes["async"] = True
                self._follow_copy(number)
        return skipped

    def _takes_garbage(self) -> bool:
        memory = self.recorder.memory
        return any(map(memory.is_unwritten, self.tensors, self.numbers))

    def _follow_copy(self, number: int) -> None:
        """The copy is complete when the device has come as far as it is now.

        One from the host's memory is complete at once, but the program asked not to wait for it:
        only what reads it next is told what arrived.
        """
        source = next((each for each in self.tensors if each.is_cuda), None)
        if source is None or number < 0:
            return
        if self.recorder.is_capturing():  # it is made at each replay
            self.recorder.memory.never_complete(number)
            return
        cuda = self.recorder.torch.cuda
        passed = cuda.Event()
        passed.record(cuda.current_stream(source.device))
        self.recorder.memory.flying[number] = passed.query


def _has_no_bytes(made: Any) -> bool:
    """Whether somebody is only asking what would be made (infrastructure modes come after ours)."""
    return made.device.type == "meta" or type(made).__name__ in SUBCLASSES_WITHOUT_BYTES
