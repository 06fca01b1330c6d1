"""Traces numpy and scipy where torch is not in the process: each call from outside, as one event.

What is hooked: the call of ufuncs and of array functions, by their classes, so that operators and
calls from C are seen, and arrays stay what they are; the methods of ufuncs and of arrays; the
functions that scipy's packages offer. At the level "kernels" what such a call calls itself is seen,
too, if a program could call it.

Not seen: arithmetic of numpy's scalars, indexing and assignment to parts of arrays, what makes
arrays (random numbers, files, `arange`), sparse matrices, scipy's own wrappers of BLAS and LAPACK,
and extensions that compute by themselves.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING

from ... import faults, imports
from . import array_facts, c_classes
from .array_facts import Facts
from .recorder import Recorder

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

    from .capture_arrays import ArrayCall

_SCIPY = (
    *("scipy.linalg", "scipy.fft", "scipy.signal", "scipy.special", "scipy.ndimage"),
    *("scipy.interpolate", "scipy.spatial.distance"),
)
_OF_NUMPY = ("numpy", "numpy.linalg", "numpy.fft")
_NUMBERS = (float, int, complex)
_PLACE = ("", "f")


class ArrayRecorder(Recorder):
    """The recorder of a process without torch: its tensors are arrays and numbers."""

    ended = False

    def end(self) -> None:
        """Another recorder takes over."""
        self.ended = True
        self.open = False
        self.log.withdraw()

    def go_to(self, step: int) -> None:
        """From here on it is this step."""
        if not self.ended:
            super().go_to(step)

    def after_fork(self) -> None:
        """Go on in a child."""
        if not self.ended:
            super().after_fork()

    def place(self) -> Tuple[str, str]:
        """Nothing has a module, and all is forward."""
        return _PLACE

    def head(self) -> Dict[str, Any]:
        """What the log's first line says of the trace."""
        found = super().head()
        del found["torch"]
        for name in ("numpy", "scipy"):
            version = getattr(sys.modules.get(name), "__version__", None)
            if version is not None:
                found[name] = str(version)
        return found

    def _described(self, tensor: Any) -> str:
        """Dtype, shape and layout as JSON; of numbers the name of their type."""
        if not hasattr(tensor, "dtype"):
            sizes = "[%d]" % len(tensor) if isinstance(tensor, (list, tuple)) else "[]"
            name = "tuple" if sizes != "[]" else type(tensor).__name__
            return '"%s",%s,null' % (name, sizes)
        key = (tensor.dtype, tensor.shape, tensor.strides)
        known = self._shapes.get(key)
        if known is None:
            known = self._shapes[key] = _array_described(tensor)
        return known


def _array_described(array: Any) -> str:
    sizes = ",".join(map(str, array.shape))
    layout = "null"
    if not array.flags["C_CONTIGUOUS"] and array.itemsize:
        steps = ",".join(str(step // array.itemsize) for step in array.strides)
        layout = '"strided(%s)"' % steps
    name = array.dtype.name if array.dtype.names is None else "structured"
    return '"%s",[%s],%s' % (name, sizes, layout)


class Arrays:
    """The hooks of one process. `install` puts them in place, `withdraw` takes them away."""

    def __init__(self, recorder: ArrayRecorder, numpy: ModuleType) -> None:
        self.recorder = recorder
        self.numpy: Any = numpy
        self.kinds = (self.numpy.ndarray, self.numpy.generic)
        self.owners = _Owners(self.numpy.ndarray)
        self._facts: Dict[Any, Facts] = {}
        self._foreign: Dict[type, bool] = {}
        self._undo: List[Callable[[], None]] = []

    # -- hooks ----------------------------------------------------------------------------------

    def install(self) -> None:
        """Hook the classes of numpy; scipy's packages when they are imported."""
        ufunc, array = self.numpy.ufunc, self.numpy.ndarray
        if not all(map(c_classes.can_replace, (ufunc, array))):
            faults.say(
                "WARNING: operations of numpy are not traced: this Python (%s) lays out its "
                "classes in another way than CPython 3.8 to 3.13" % sys.version.split()[0]
            )
            return
        self._leave_out_seeds()
        self._hook(ufunc, "__call__", self._of_ufunc("__call__"))
        for name in array_facts.UFUNC_METHODS:
            self._hook(ufunc, name, self._of_ufunc(name))
        for name in array_facts.METHODS:
            if name in array.__dict__:
                self._hook(array, name, self._with(array_facts.of_method(name)))
        self._refresh()
        kind = _dispatcher()
        if kind is not None and c_classes.can_replace(kind):
            self._hook(kind, "__call__", self._of_function())
        else:  # before numpy 1.25 array functions are written in Python
            for name in _OF_NUMPY:
                imports.after(name, functools.partial(self._offer, "_implementation"))
        for name in _SCIPY:
            imports.after(name, functools.partial(self._offer, "__call__"))

    def withdraw(self) -> None:
        """Leave the process as it was."""
        while self._undo:
            self._undo.pop()()

    def _hook(self, kind: type, name: str, around: Callable[[Any], Any]) -> None:
        flags = kind.__flags__
        before = kind.__dict__[name]
        c_classes.replace(kind, name, functools.wraps(before)(around(before)))
        self._undo.append(functools.partial(c_classes.restore, kind, name, before, flags))

    def _of_ufunc(self, method: str) -> Callable[[Any], Any]:
        """Around `ufunc.METHOD`."""
        known: Dict[Any, Facts] = {}
        run = self.run

        def around(before: Any) -> Any:
            def call(ufunc: Any, /, *args: Any, **kwargs: Any) -> Any:
                facts = known.get(ufunc)
                if facts is None:
                    if array_facts.is_of_program(ufunc):  # what that calls is seen by itself
                        return before(ufunc, *args, **kwargs)
                    facts = known[ufunc] = array_facts.of_ufunc(ufunc, method)
                return run(facts, functools.partial(before, ufunc), args, kwargs)

            return call

        return around

    def _of_function(self) -> Callable[[Any], Any]:
        """Around the call of an array function."""
        run, known = self.run, self._facts

        def around(before: Any) -> Any:
            def call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
                facts = known.get(function)
                if facts is None:
                    facts = known[function] = array_facts.of_function(function)
                return run(facts, functools.partial(before, function), args, kwargs)

            return call

        return around

    def _leave_out_seeds(self) -> None:
        """What numpy computes to make a seed is no event: without one it is new in each run."""
        try:
            from numpy.random.bit_generator import SeedSequence
        except ImportError:  # before numpy 1.17
            return
        for name in ("__init__", "generate_state", "spawn"):
            if name in vars(SeedSequence) and c_classes.can_replace(SeedSequence):
                self._hook(SeedSequence, name, self._with(array_facts.MUTE))

    def _with(self, facts: Facts) -> Callable[[Any], Any]:
        """Around a function of which these are the facts."""
        run = self.run

        def around(before: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                return run(facts, before, args, kwargs)

            return call

        return around

    def _refresh(self) -> None:
        """What numpy took from a ufunc when it was imported (`umr_sum`) is taken again."""
        builtin, ufunc = type(len), self.numpy.ufunc
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] != "numpy":
                continue
            for attribute, value in list(vars(module).items()):
                owner = getattr(value, "__self__", None) if type(value) is builtin else None
                if isinstance(owner, ufunc):
                    setattr(module, attribute, getattr(owner, value.__name__))
                    self._undo.append(functools.partial(setattr, module, attribute, value))

    def _offer(self, mark: str, module: ModuleType) -> None:
        """Wrap the functions that a package offers and that have an attribute `mark`.

        Where they are defined, too: there they are looked up when somebody pickles one.
        """
        offered = getattr(module, "__all__", None) or list(vars(module))
        for name in offered:
            function = getattr(module, name, None)
            if name[0] == "_" or not hasattr(function, mark) or not self._is_function(function):
                continue
            wrapper = self._wrapper(module.__name__, name, function)
            home = sys.modules.get(getattr(function, "__module__", None) or "")
            for place in (module, home):
                if place is not None and vars(place).get(name) is function:
                    setattr(place, name, wrapper)
                    self._undo.append(functools.partial(setattr, place, name, function))

    def _is_function(self, value: Any) -> bool:
        kinds = (type, self.numpy.ufunc, type(sys))
        return callable(value) and hasattr(value, "__name__") and not isinstance(value, kinds)

    def _wrapper(self, module: str, name: str, function: Any) -> Any:
        facts = Facts(module, "%s.%s" % (module, name), range(0))
        run = self.run

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return run(facts, function, args, kwargs)

        return call

    # -- one call -------------------------------------------------------------------------------

    def run(
        self, facts: Facts, function: Callable[..., Any], args: Tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Call `function`, and write it down unless it is part of another call."""
        recorder = self.recorder
        thread = recorder.thread
        if thread.busy or facts.passes:
            return function(*args, **kwargs)
        if facts.mute:
            with recorder.unseen():
                return function(*args, **kwargs)
        if not recorder.open or self._is_foreign(args, kwargs):
            return function(*args, **kwargs)
        kind = "op"
        if thread.inside:
            thread.nested += facts.public
            if not recorder.deep or not facts.public:
                return function(*args, **kwargs)
            kind = "kernel"
        call = Call(self, facts, args, kwargs)
        with _unseen(thread):
            call.before(kind)
        before = thread.nested
        thread.inside += 1
        try:
            result = function(*args, **kwargs)
        finally:
            thread.inside -= 1
        with _unseen(thread):
            call.after(kind, result, thread.nested - before)
        return result

    def _is_foreign(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
        """Whether somebody else's arrays decide what is computed, or a function of the program."""
        for value in (*args, *kwargs.values()):
            if self._is_foreign_kind(type(value)):
                return True
            if type(value) in (list, tuple):
                for each in value[:64]:
                    if self._is_foreign_kind(type(each)):
                        return True
        return False

    def _is_foreign_kind(self, kind: type) -> bool:
        known = self._foreign.get(kind)
        if known is None:
            known = self._foreign[kind] = self._decides(kind)
        return known

    def _decides(self, kind: Any) -> bool:
        array = self.numpy.ndarray
        if issubclass(kind, array):
            own = kind.__array_ufunc__, kind.__array_function__
            return own != (array.__array_ufunc__, array.__array_function__)
        if issubclass(kind, (self.numpy.generic, self.numpy.ufunc, type)):
            return False
        names = "__array_ufunc__", "__array_function__", "__call__"
        return any(name in vars(each) for each in kind.__mro__ for name in names)


@contextlib.contextmanager
def _unseen(thread: Any) -> Iterator[None]:
    """What this thread does meanwhile is ours, and no event."""
    thread.busy = True
    try:
        yield
    finally:
        thread.busy = False


class Call:
    """One call: `before` reads what it gets, `after` what it gives, and writes the event."""

    __slots__ = ("_args", "_arrays", "_captured", "_facts", "_ins", "_kwargs", "_notes", "_numbers")

    def __init__(
        self, arrays: Arrays, facts: Facts, args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> None:
        self._arrays = arrays
        self._facts = facts
        self._args = args
        self._kwargs = kwargs
        self._notes: Dict[str, Any] = {}
        self._numbers: Set[int] = set()
        self._ins: List[str] = []
        self._captured: Optional[ArrayCall] = None

    def before(self, kind: str) -> None:
        """Read the inputs; where this is the call that is awaited, keep them."""
        facts, kwargs, found = self._facts, self._kwargs, _Found(self._arrays.kinds)
        partly = kwargs.get("where", True) is not True
        for at, value in enumerate(self._args):
            if (at not in facts.outs or partly) and not (facts.fills and at == 0 and not partly):
                found.take(str(at), value)
        for name, value in kwargs.items():
            if name != "out" or partly:
                found.take("kw." + name, value)
        self._ins = self._entries(found)
        recorder = self._arrays.recorder
        if recorder.awaited is None:
            return
        awaited = recorder.awaited.begin(recorder, kind, facts.name, _PLACE)
        if awaited is not None:
            from .capture_arrays import ArrayCall

            self._captured = ArrayCall(awaited.awaited, self._arrays.numpy, facts)
            self._captured.before(self._args, kwargs)

    def after(self, kind: str, result: Any, nested: int) -> None:
        """Read the outputs, and write the event. nested: how many calls of it could be events."""
        facts, found = self._facts, _Found(self._arrays.kinds)
        if type(result) in (list, tuple) or hasattr(result, "_fields"):
            for at, value in enumerate(result):
                found.take(str(at), value)
        elif result is not None:
            found.take("0", result)
        if facts.writes and self._args:
            found.take("arg.0", self._args[0])
            self._notes["writes"] = ["0"]
        if not any(map(self._counts, found.values)):
            return  # what it gives is no array and no number, so that no bits are to be compared
        if nested:
            self._notes["nested"] = nested
        outs = self._entries(found, self._skipped(len(found.values)), self._numbers)
        self._arrays.recorder.event(kind, facts.name, _PLACE, self._ins, outs, notes=self._notes)
        if self._captured is not None:
            self._captured.after(result)

    def _counts(self, value: Any) -> bool:
        return isinstance(value, (*self._arrays.kinds, float, complex))

    def _skipped(self, count: int) -> Sequence[bool]:
        """Elements that `where` leaves out hold whatever was in the memory."""
        partly = self._kwargs.get("where", True) is not True
        own = partly and self._facts.outs.stop > 1 << 15  # of a reduction all elements are written
        if not own or array_facts.out_given(self._facts.outs, self._args, self._kwargs):
            return ()
        self._notes["uninitialised"] = True
        return [True] * count

    def _entries(
        self, found: _Found, skipped: Sequence[bool] = (), known: Optional[Set[int]] = None
    ) -> List[str]:
        if not found.values:
            return []
        numbers = [self._arrays.owners.number(each, known) for each in found.values]
        self._numbers.update(numbers)
        if not skipped and any(map(_has_holes, found.values)):
            self._notes["why"] = "long doubles have bytes between them that nobody writes"
            skipped = [_has_holes(each) for each in found.values]
        return self._arrays.recorder.numbered(
            found.paths, found.values, numbers, self._notes, skipped=skipped
        )


class _Owners:
    """A number for each piece of memory: for the array that others are views of.

    No reference is held, not even a weak one: `ndarray.resize` refuses arrays that have one.
    """

    def __init__(self, array: type) -> None:
        self._array: Any = array
        self._numbers: Dict[int, Tuple[int, Any]] = {}
        self._next = 0

    def number(self, value: Any, known: Optional[Set[int]] = None) -> int:
        """The number; -1 for what is no array.

        known: numbers of what a call got. Given for what it gives: that is of these, or new.
        """
        kind = self._array
        if not isinstance(value, kind):
            return -1
        while isinstance(value.base, kind):
            value = value.base
        where = value.__array_interface__["data"][0], value.nbytes
        number, seen = self._numbers.get(id(value), (-1, None))
        if seen == where and (known is None or number in known):
            return number
        number = self._next
        self._next += 1
        self._numbers[id(value)] = number, where
        return number


class _Found:
    """Arrays and numbers of a call, with their paths."""

    __slots__ = ("_kinds", "paths", "values")

    def __init__(self, kinds: Tuple[type, ...]) -> None:
        self._kinds = kinds
        self.paths: List[str] = []
        self.values: List[Any] = []

    def take(self, path: str, value: Any, depth: int = 4) -> None:
        if isinstance(value, self._kinds) or type(value) in _NUMBERS:
            self.paths.append(path)
            self.values.append(value)
        elif type(value) in (list, tuple) and depth:
            if _all_numbers(value, 4):
                self.paths.append(path)
                self.values.append(value)
                return
            for at, each in enumerate(value):
                self.take("%s.%d" % (path, at), each, depth - 1)


def _has_holes(value: Any) -> bool:
    return getattr(getattr(value, "dtype", None), "char", "") in ("g", "G")


def _all_numbers(values: Sequence[Any], depth: int) -> bool:
    for each in values:
        if type(each) in (list, tuple) and depth:
            if not _all_numbers(each, depth - 1):
                return False
        elif type(each) not in _NUMBERS and type(each) is not bool:
            return False
    return True


def _dispatcher() -> Optional[type]:
    """The class of array functions; None before numpy 1.25."""
    for name in ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath"):
        kind = vars(sys.modules[name]).get("_ArrayFunctionDispatcher") if name in sys.modules else 0
        if isinstance(kind, type):
            return kind
    return None
