"""The recorder of one process: where the run is (step, module, phase), and how events are written.

Every hook of this package asks it three things: may I look (`looking`), what is this tensor
(`entries`), and write this event (`event`).
"""

from __future__ import annotations

import bisect
import contextlib
import json
import re
import threading
from typing import TYPE_CHECKING

from .keeping import Keeping
from .memory import Memory

if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

    from ...choosers.cublaslt.calls import Calls
    from .capture import Awaited
    from .hashing import Hashing
    from .log import Log
    from .settings import Settings

_NO_SCOPE = 1 << 62  # nodes without a sequence number (AccumulateGrad) have the largest there is
_KEPT_MARKS = 1 << 20


class _Thread(threading.local):
    """What one thread is in the middle of.

    busy: our own code runs, or code whose operations are nobody's business (a compiler, a timing)
    region: the compiled region that runs, or None
    inside: how many hooked functions (a collective, a launch) this thread is in
    nested: how many calls came inside of a call of numpy or scipy
    operation: the operation of the dispatcher that runs, or None
    calls_seen: the counter of cuBLASLt's calls when this thread looked last
    calls_told: how many of them the operation that runs has made so far
    scopes: the paths of the modules that are running, innermost last
    recomputing, stepping: whether a checkpoint recomputes, whether an optimizer steps
    """

    busy = False
    region: Optional[str] = None
    inside = 0
    nested = 0
    operation: Optional[str] = None
    calls_seen = 0
    calls_told = 0
    recomputing = 0
    stepping = 0

    def __init__(self) -> None:
        self.scopes: List[str] = []
        self.name = _thread_name()
        self.main = threading.current_thread() is threading.main_thread()


class Recorder:
    """One for each process; a child that was forked goes on with its parent's, on a new log.

    torch: None in a process without it (arrays.py).
    """

    def __init__(self, torch: Any, settings: Settings, log: Log, hashing: Hashing) -> None:
        self.torch = torch
        self.settings = settings
        self.log = log
        self.hashing = hashing
        self.memory = Memory()
        self.keeping = None if settings.keep is None else Keeping(settings.folder, settings.keep)
        self.awaited: Optional[Awaited] = None
        self.thread = _Thread()
        self.step = 0
        self.open = settings.step_in_window(0)
        self.deep = settings.at_least("kernels")
        self.calls: Optional[Calls] = None
        self._counts: Dict[Tuple[str, str, str, str, int], int] = {}
        self._order = 0
        self._shapes: Dict[Any, str] = {}
        self._scopes: Dict[str, Tuple[bool, str]] = {}
        self._marks: List[int] = []
        self._mark_scopes: List[str] = []
        core = getattr(torch, "_C", None)
        self._node = getattr(core, "_current_autograd_node", lambda: None)
        self._sequence = getattr(getattr(torch, "autograd", None), "_get_sequence_nr", None)
        cuda = getattr(core, "_cuda_isCurrentStreamCapturing", None)
        self._capturing = cuda if cuda is not None else lambda: False

    # -- where the run is -----------------------------------------------------------------------

    def looking(self) -> bool:
        """Whether an event of this thread would be written now."""
        return self.open and not self.thread.busy

    def next_step(self) -> None:
        """A step has ended: what was gathered is written."""
        self.go_to(self.step + 1)

    def go_to(self, step: int) -> None:
        """From here on it is this step."""
        self.settle_calls()
        self.log.flush()
        self.step = step
        self.open = self.settings.step_in_window(step)
        self._counts = {key: n for key, n in self._counts.items() if key[4] >= self.step}
        if len(self._marks) > _KEPT_MARKS:
            del self._marks[: _KEPT_MARKS // 2], self._mark_scopes[: _KEPT_MARKS // 2]

    def enter(self, scope: str) -> None:
        """A module begins in this thread."""
        self.settle_calls()
        self.thread.scopes.append(scope)
        self._mark(scope)

    def leave(self) -> None:
        """The innermost module of this thread has ended."""
        self.settle_calls()
        scopes = self.thread.scopes
        scopes.pop()
        self._mark(scopes[-1] if scopes else "")

    def _mark(self, scope: str) -> None:
        """Operations from here on, forward and backward, belong to `scope`.

        Autograd numbers the nodes of a thread's graph in the order in which they are made.
        """
        if self._sequence is None or not self.thread.main:
            return
        self._marks.append(self._sequence())
        self._mark_scopes.append(scope)

    def place(self) -> Tuple[str, str]:
        """The scope and the phase of what runs in this thread."""
        thread = self.thread
        if thread.stepping:
            return "", "o"
        node = self._node()
        again = thread.recomputing or (node is not None and thread.scopes)
        if node is not None and not again:
            return self._scope_of(node), "b"
        return (thread.scopes[-1] if thread.scopes else ""), ("r" if again else "f")

    def _scope_of(self, node: Any) -> str:
        try:
            number = node._sequence_nr()
        except (AttributeError, RuntimeError):  # nodes of Python functions, in older torch
            return ""
        if number > _NO_SCOPE:
            return ""
        at = bisect.bisect_right(self._marks, number) - 1
        return self._mark_scopes[at] if at >= 0 else ""

    def in_window(self, scope: str) -> bool:
        """Whether events of this module scope are written."""
        return self._scope(scope)[0]

    # -- tensors --------------------------------------------------------------------------------

    def entries(
        self,
        paths: Sequence[str],
        tensors: Sequence[Any],
        notes: Dict[str, Any],
        known: Optional[Set[int]] = None,
        skipped: Sequence[bool] = (),
    ) -> List[str]:
        """One JSON list for each tensor: path, digest, dtype, shape, layout, storage.

        notes: gets what the event must say of tensors that have no digest.
        known: storages an output may share; given for outputs only.
        skipped: tensors that are not hashed; the caller says why.
        """
        memory = self.memory
        if known is None:
            numbers = [memory.number(tensor) for tensor in tensors]
        else:
            numbers = [memory.fresh(tensor, known) for tensor in tensors]
        return self.numbered(paths, tensors, numbers, notes, skipped=skipped)

    def numbered(
        self,
        paths: Sequence[str],
        tensors: Sequence[Any],
        numbers: Sequence[int],
        notes: Dict[str, Any],
        *,
        skipped: Sequence[bool] = (),
        below: bool = False,
    ) -> List[str]:
        """As `entries`, where the numbers of the storages are known.

        below: the caller is below autograd, so that a copy costs and changes nothing.
        """
        memory = self.memory
        refused = None
        if memory.unwritten or memory.flying or skipped or self._has_devices():
            refused = self._refused(tensors, numbers, notes, skipped)
        if refused is None:
            digests = self.hashing.many(_dense(tensors) if below else tensors)
        else:
            kept = [tensor for tensor, no in zip(tensors, refused) if not no]
            found = iter(self.hashing.many(_dense(kept) if below else kept))
            digests = [None if no else next(found) for no in refused]
        if self.keeping is not None:
            self.keeping.take(tensors, digests)
        lines: List[str] = []
        for path, tensor, text, number in zip(paths, tensors, digests, numbers):
            if text is None:
                shown = "null"
                if refused is None or not refused[len(lines)]:
                    notes["why"] = self.hashing.why(tensor)
            else:
                shown = '"' + text + '"'
            lines.append('["%s",%s,%s,%d]' % (path, shown, self._described(tensor), number))
        return lines

    def _has_devices(self) -> bool:
        """Whether there may be tensors on a GPU."""
        return self.torch is not None and bool(getattr(self.torch.cuda, "_initialized", True))

    def _refused(
        self,
        tensors: Sequence[Any],
        numbers: Sequence[int],
        notes: Dict[str, Any],
        skipped: Sequence[bool],
    ) -> Optional[List[bool]]:
        """Which tensors must not be read now; None where all can be."""
        capturing = self.is_capturing()
        if capturing and any(tensor.is_cuda for tensor in tensors):
            notes["capture"] = True
            notes["why"] = "a CUDA graph is being captured: what it computes is not traced"
            return [True] * len(tensors)
        if not (self.memory.unwritten or self.memory.flying or skipped):
            return None
        refused = []
        for at, tensor in enumerate(tensors):
            no = bool(skipped) and skipped[at]
            if self._is_flying(numbers[at], capturing):
                no = notes["async"] = True
            elif self.memory.is_unwritten(tensor, numbers[at]):
                no = notes["uninitialised"] = True
            refused.append(no)
        return refused if any(refused) else None

    def is_capturing(self) -> bool:
        """Whether this thread's stream is becoming a CUDA graph."""
        return self._has_devices() and bool(self._capturing())

    def _is_flying(self, number: int, capturing: bool) -> bool:
        """Whether something may still be writing; asking a device would end a capture."""
        if capturing:
            return number in self.memory.flying
        return self.memory.is_flying(number)

    def _described(self, tensor: Any) -> str:
        """Dtype, shape and layout as JSON: `"float32",[2,3],null`."""
        try:
            key = (tensor.dtype, tensor.shape, tensor.stride())
            known = self._shapes.get(key)
        except (RuntimeError, NotImplementedError, TypeError):  # sparse, nested, symbolic
            return self._describe_other(tensor)
        if known is None:
            layout = "null" if tensor.is_contiguous() else '"strided%s"' % _sizes(key[2], "()")
            known = '"%s",%s,%s' % (_last(key[0]), _sizes(key[1], "[]"), layout)
            if len(self._shapes) > 65536:
                self._shapes.clear()
            self._shapes[key] = known
        return known

    @staticmethod
    def _describe_other(tensor: Any) -> str:
        sizes = [size if isinstance(size, int) else -1 for size in tensor.shape]
        return '"%s",%s,"%s"' % (_last(tensor.dtype), _sizes(sizes, "[]"), _last(tensor.layout))

    # -- events ---------------------------------------------------------------------------------

    def event(
        self,
        kind: str,
        name: str,
        place: Tuple[str, str],
        ins: Sequence[str] = (),
        outs: Sequence[str] = (),
        *,
        notes: Optional[Dict[str, Any]] = None,
        extra: str = "",
        step: Optional[int] = None,
    ) -> None:
        """Write one event, after what cuBLASLt was called for before it.

        name: as JSON would have it, without the quotes. extra: `notes` as JSON, where it is known.
        """
        self.settle_calls()
        scope, phase = place
        number = self.step if step is None else step
        key = (kind, name, scope, phase, number)
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1
        thread = self.thread
        if not thread.main:
            notes, extra = dict(notes or {}, thread=thread.name), ""
        if thread.region is not None:
            notes, extra = dict(notes or {}, compiled=True, region=thread.region), ""
        if notes:
            extra = ',"x":' + (extra or json.dumps(notes, separators=(",", ":")))
        order = self._order
        self._order = order + 1
        self.log.add(
            '{"e":"%s","n":"%s","i":%d,%s"p":"%s","s":%d,"q":%d,"in":[%s],"out":[%s]%s}'
            % (
                kind,
                name,
                count,
                self._scope(scope)[1],
                phase,
                number,
                order,
                ",".join(ins),
                ",".join(outs),
                extra,
            )
        )

    def seen(self, kind: str, name: str, place: Tuple[str, str]) -> int:
        """How many events of this label were written in this step so far."""
        return self._counts.get((kind, name, *place, self.step), 0)

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """What this thread does meanwhile is not the program's."""
        thread = self.thread
        self.settle_calls()
        before, thread.busy = thread.busy, True
        try:
            yield
        finally:
            self.settle_calls()
            thread.busy = before

    # -- calls of cuBLASLt ----------------------------------------------------------------------

    def settle_calls(
        self,
        ins: Sequence[str] = (),
        outs: Sequence[str] = (),
        *,
        ours: bool = False,
        tensors: Sequence[Any] = (),
    ) -> None:
        """Write what this thread called cuBLASLt for since it was asked last, as kernels.

        ins, outs: what the operation that ran read and made: of its only call, that is what the
            call was for. Calls that are nobody's business, or outside the window, are dropped.
        tensors: those that it read and made
        ours: this thread is busy with writing down the operation that made them
        """
        calls = self.calls
        if calls is None:
            return
        thread = self.thread
        count = calls.counter.value
        if count == thread.calls_seen:
            return
        thread.calls_seen = count
        found = calls.take()
        place = self.place()
        if not found or not (ours or self.looking()) or not self.in_window(place[0]):
            return
        thread.calls_told += len(found)
        if thread.calls_told > 1:  # which of them read and made what is not known
            ins = outs = ()
        for call in found:
            notes = dict(call.notes)
            if thread.operation is not None:
                notes["op"] = thread.operation
            if self.awaited is not None:
                from . import capture_cublaslt  # which knows us

                capture_cublaslt.look(self, call, place, tensors)
            self.event("kernel", escaped(call.name), place, ins, outs, notes=notes)

    @contextlib.contextmanager
    def operation(self, name: str) -> Iterator[None]:
        """What this thread calls cuBLASLt for meanwhile, it does for this operation."""
        thread = self.thread
        self.settle_calls()
        thread.operation, thread.calls_told = name, 0
        try:
            yield
        finally:
            thread.operation = None

    def tell_calls(
        self, operation: str, ins: Sequence[str], outs: Sequence[str], tensors: Sequence[Any]
    ) -> None:
        """Write the calls that an operation made, which has just ended."""
        thread = self.thread
        thread.operation = operation
        try:
            self.settle_calls(ins, outs, ours=True, tensors=tensors)
        finally:
            thread.operation = None

    def _scope(self, scope: str) -> Tuple[bool, str]:
        known = self._scopes.get(scope)
        if known is None:
            text = '"m":%s,' % json.dumps(scope) if scope else ""
            known = self._scopes[scope] = (self.settings.scope_in_window(scope), text)
        return known

    def head(self) -> Dict[str, Any]:
        """What the log's first line says of the trace."""
        return {
            "level": self.settings.level,
            "window": self.settings.window(),
            "torch": str(getattr(self.torch, "__version__", "")),
            "algorithm": self.hashing.name,
        }

    def after_fork(self) -> None:
        """Go on in a child: its log, its counts and its order are its own."""
        self.log.forget()
        if self.keeping is not None:
            self.keeping.forget()
        self._counts = {}
        self._order = 0


def _dense(tensors: Sequence[Any]) -> Sequence[Any]:
    """The tensors, those with gaps or another order as copies: below autograd that is cheap.

    Digests are of values in the order of their indices, so a copy has the same one.
    """
    for tensor in tensors:
        if not tensor.is_contiguous():
            return [_copied(tensor) for tensor in tensors]
    return tensors


def _copied(tensor: Any) -> Any:
    try:
        plain = tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg()
        return tensor if plain else tensor.contiguous()
    except RuntimeError:  # sparse
        return tensor


def is_older(torch: Any, version: Tuple[int, int]) -> bool:
    """Whether this torch comes before a version; one that has no numbers is taken for newer."""
    found = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    return found is not None and (int(found[1]), int(found[2])) < version


def escaped(name: str) -> str:
    """`name` as it stands inside the quotes of JSON."""
    return json.dumps(name)[1:-1]


def _sizes(sizes: Sequence[int], around: str) -> str:
    return around[0] + ",".join(map(str, sizes)) + around[1]


def _last(name: Any) -> str:
    return str(name).rpartition(".")[2]


def _thread_name() -> str:
    """A name that is the same in each run: the engine's threads are strangers to Python."""
    thread = threading.current_thread()
    return "autograd" if isinstance(thread, threading._DummyThread) else thread.name
