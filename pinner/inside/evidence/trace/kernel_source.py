"""What a Triton kernel consists of: its text, that of the functions it calls, and what they read.

Facts only, as plain values: which text, which names in it at which places, and what each of them
means in this process. Which of it a program of its own copies and which it imports is decided
elsewhere, where the facts of two stacks lie side by side.
"""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import math
import os
import sys
import textwrap
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING

from ...choosers.triton.source import scope_of
from .capture import NotCaptured

if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

    Place = Tuple[int, int, int, int]  # as ast counts: line from 1, byte in it, and the end of both
    Meaning = List[Any]

# What a name in the text of a function means, as `Meaning`:
FUNCTION = "function"  # its number in the list of functions; its module and name
MODULE = "module"  # the module's name
OBJECT = "object"  # module and name from which it can be imported: Triton's, torch's, Python's
CONSTANT = "constant"  # as Python writes it; whether annotated constexpr; its module and name
UNKNOWN = "unknown"  # why it cannot be written down
NOTE = "note"  # an annotation that means nothing outside of its module

_MISSING = object()
_MOST_HOPS = 8
_OPTIONS = ("do_not_specialize", "do_not_specialize_on_alignment", "noinline", "debug")
# Modules of these can be imported wherever the kernel runs.
_EVERYWHERE = ("triton", "torch", "math", "typing", "builtins", "operator", "functools")


class NoSource(NotCaptured):
    """A function whose text, or what it reads, cannot be written down; says which and why."""


def closure(function: Any, further: Sequence[Any] = ()) -> Dict[str, Any]:
    """All functions that a kernel consists of, itself first, and the homes of their modules.

    function: the plain Python function under `@triton.jit`, wrapped or not. further: functions that
    it is given as arguments, which come right after it. Raises NoSource.
    """
    found = _Closure()
    for each in (function, *further):
        found.number(each)
    found.fill()
    modules = {each["module"] for each in found.functions}
    return {
        "functions": found.functions,
        "homes": {name: home(name) for name in sorted(modules | found.origins)},
    }


class _Closure:
    def __init__(self) -> None:
        self.functions: List[Dict[str, Any]] = []
        self.origins: Set[str] = set()
        self._numbers: Dict[int, int] = {}
        self._objects: List[Any] = []

    def number(self, wrapped: Any) -> int:
        """The number of a function; new where it was not met before."""
        plain = plain_function(wrapped)
        known = self._numbers.get(id(plain))
        if known is None:
            known = self._numbers[id(plain)] = len(self._objects)
            self._objects.append(wrapped)
        return known

    def fill(self) -> None:
        """Write down each function that was met, and those that it meets."""
        while len(self.functions) < len(self._objects):
            self.functions.append(self._written(self._objects[len(self.functions)]))

    def _written(self, wrapped: Any) -> Dict[str, Any]:
        function = plain_function(wrapped)
        name = "%s.%s" % (function.__module__, function.__qualname__)
        text = _text(wrapped, function, name)
        definition = ast.parse(text).body[0]
        if not isinstance(definition, ast.FunctionDef):
            raise NoSource("%s is no plain function" % name)
        reading = _Reading(self, function, definition, name)
        return {
            "module": function.__module__,
            "qualname": function.__qualname__,
            "name": function.__name__,
            "importable": _is_importable(function),
            "text": text,
            "kind": _kind(wrapped),
            "options": _options(wrapped),
            "locals": sorted(reading.bound),
            "reads": reading.reads(),
        }


class _Reading:
    """The names that one function reads and does not bind itself."""

    def __init__(
        self, found: _Closure, function: FunctionType, definition: ast.FunctionDef, name: str
    ) -> None:
        self._closure = found
        self._function = function
        self._definition = definition
        self._name = name
        self._scope = scope_of(function)
        self.bound = _bound(definition)
        # Before Python 3.12 nobody knows where in an f-string a name stands.
        self._in_strings = {
            id(node)
            for text in ast.walk(definition)
            if isinstance(text, ast.JoinedStr)
            for node in ast.walk(text)
        }

    def reads(self) -> List[Dict[str, Any]]:
        """Each path that is read, what it means, and where it stands."""
        places: Dict[str, List[Place]] = {}
        meanings: Dict[str, Meaning] = {}
        notes: List[Dict[str, Any]] = []
        for node, path in self._paths():
            meaning = self._meaning(path)
            if meaning is None:
                continue
            kept = ".".join(path[: len(path) - meaning.pop()])
            if meaning[0] == UNKNOWN:
                raise NoSource("%s reads %s, %s" % (self._name, kept, meaning[1]))
            places.setdefault(kept, [])
            if id(node) not in self._in_strings:
                places[kept].append(_place(_shortened(node, kept.count("."))))
            meanings[kept] = meaning
        for place in self._dropped_annotations():
            notes.append({"path": "", "means": [NOTE], "places": [place]})
        found = [{"path": p, "means": meanings[p], "places": places[p]} for p in sorted(places)]
        return found + notes

    def _paths(self) -> Iterator[Tuple[ast.AST, Tuple[str, ...]]]:
        dropped = {id(node) for node in self._useless_annotations()}
        for node, path in _paths(self._definition, dropped):
            if path[0] not in self.bound:
                yield node, path

    def _meaning(self, path: Tuple[str, ...]) -> Optional[List[Any]]:
        """What a path means, and how many of its last parts are left as they stand.

        None for Python's own names, and for those that nothing is behind.
        """
        value = self._scope.get(path[0], _MISSING)
        if value is _MISSING:
            return None
        origin = _imported(self._function, path[0]) if path[0] in self._function.__globals__ else []
        annotated = "constexpr" in str(
            self._function.__globals__.get("__annotations__", {}).get(path[0], "")
        )
        for at, name in enumerate(path):
            if at:
                if not hasattr(value, name):
                    return [UNKNOWN, "which is not there", len(path) - 1 - at]
                origin, annotated = _attribute_of(value, name)
                value = getattr(value, name)
            left = len(path) - 1 - at
            if left and isinstance(value, enum.Enum):
                continue  # its `value` is the constant
            found = self._of_value(value, name, origin, annotated)
            if found is not None:
                return [*found, left]
        if isinstance(value, ModuleType):
            return [UNKNOWN, "a module, which is more than a program of its own can hold", 0]
        return [UNKNOWN, _a(value), 0]

    def _of_value(
        self, value: Any, name: str, origin: List[str], annotated: bool
    ) -> Optional[Meaning]:
        """What a value means; None where it is to be looked into, or means nothing."""
        if isinstance(value, ModuleType):
            return [MODULE, value.__name__] if _is_everywhere(value.__name__) else None
        elsewhere = _importable(value, name)
        if elsewhere is not None:
            return [OBJECT, *elsewhere]
        code = None if is_function(value) else code_of(value)
        if code is None and not is_function(value):
            return None
        if origin:
            self._closure.origins.add(origin[0])
        if code is None:
            return [FUNCTION, self._closure.number(value), origin]
        return [CONSTANT, code, annotated, origin]

    # -- annotations ----------------------------------------------------------------------------

    def _useless_annotations(self) -> List[ast.AST]:
        """Annotations of names that mean nothing outside: Triton asks for constexpr and dtypes."""
        found = []
        for annotation in _annotations(self._definition):
            for _, path in _paths(annotation, set()):
                value = self._scope.get(path[0], _MISSING)
                for name in path[1:]:
                    value = getattr(value, name, _MISSING)
                if value is _MISSING:
                    value = vars(sys.modules["builtins"]).get(path[0], _MISSING)
                if not self._means_the_same_outside(value, path[-1]):
                    found.append(annotation)
                    break
        return found

    @staticmethod
    def _means_the_same_outside(value: Any, name: str) -> bool:
        if isinstance(value, ModuleType):
            return _is_everywhere(value.__name__)
        return _importable(value, name) is not None or code_of(value) is not None

    def _dropped_annotations(self) -> List[Place]:
        """Where they stand; the colon or the arrow before them goes with them."""
        return [_place(node) for node in self._useless_annotations()]


# -- functions -------------------------------------------------------------------------------------


def plain_function(value: Any) -> FunctionType:
    """The Python function under a JIT function or one of its wrappers. Raises NoSource."""
    inner = value
    while not isinstance(inner, FunctionType):
        inner = getattr(inner, "fn", None)
        if inner is None:
            raise NoSource("expected a function, found a value %s" % _a(value))
    return inner


def is_function(value: Any) -> bool:
    """Whether it is a function that has a text of its own: jitted, of constants, or plain."""
    if isinstance(value, FunctionType):
        return True
    inner = getattr(value, "fn", None)
    return type(value).__module__.startswith("triton.") and isinstance(inner, FunctionType)


def _is_importable(function: FunctionType) -> bool:
    """Whether its module has it by its name, wrapped or not."""
    value = getattr(sys.modules.get(function.__module__), function.__name__, None)
    try:
        return plain_function(value) is function
    except NoSource:
        return False


def _kind(wrapped: Any) -> str:
    if isinstance(wrapped, FunctionType):
        return "python"
    return "constexpr" if type(wrapped).__name__ == "ConstexprFunction" else "jit"


def _options(wrapped: Any) -> Dict[str, Any]:
    """What `@triton.jit` was given that changes what is compiled."""
    # The interpreter keeps them and does not look; in Triton 3.4 its rewriter does.
    given = getattr(wrapped, "kwargs", None)
    if given is None:
        given = getattr(getattr(wrapped, "rewriter", None), "kwargs", None)
    found = {}
    for name in _OPTIONS:
        value = given.get(name) if isinstance(given, dict) else getattr(wrapped, name, None)
        if value:
            found[name] = list(value) if isinstance(value, (list, tuple, set)) else value
    return found


def _text(wrapped: Any, function: FunctionType, name: str) -> str:
    """The definition, without what decorates it."""
    given = getattr(wrapped, "src", None)
    if not isinstance(given, str):
        try:
            given = inspect.getsource(function)
        except (OSError, TypeError, IndexError):
            raise NoSource("%s has no source that can be read" % name) from None
    text = textwrap.dedent(given)
    try:
        body = ast.parse(text).body
    except SyntaxError:
        raise NoSource("the source of %s is not that of a function" % name) from None
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
        raise NoSource("the source of %s is not that of a plain function" % name)
    return "\n".join(text.split("\n")[body[0].lineno - 1 :]).rstrip() + "\n"


# -- names -----------------------------------------------------------------------------------------


def _bound(definition: ast.AST) -> Set[str]:
    bound = {node.arg for node in ast.walk(definition) if isinstance(node, ast.arg)}
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
    return bound


def _paths(node: ast.AST, dropped: Set[int]) -> Iterator[Tuple[ast.AST, Tuple[str, ...]]]:
    """Names and dotted names below a node, the longest of each, in the order of the text."""
    if id(node) in dropped:
        return
    path = _path_of(node)
    if path is not None:
        yield node, path
        return
    for child in ast.iter_child_nodes(node):
        yield from _paths(child, dropped)


def _path_of(node: ast.AST) -> Optional[Tuple[str, ...]]:
    if isinstance(node, ast.Name):
        return (node.id,) if isinstance(node.ctx, ast.Load) else None
    if isinstance(node, ast.Attribute):
        base = _path_of(node.value)
        return None if base is None else base + (node.attr,)
    return None


def _shortened(node: Any, dots: int) -> Any:
    """The part of a dotted name that has so many dots."""
    chain = [node]
    while isinstance(chain[-1], ast.Attribute):
        chain.append(chain[-1].value)
    return chain[len(chain) - 1 - dots]


def _place(node: Any) -> Place:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _annotations(definition: ast.FunctionDef) -> Iterator[ast.AST]:
    for node in ast.walk(definition.args):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield node.annotation
    if definition.returns is not None:
        yield definition.returns


# -- values ----------------------------------------------------------------------------------------


def code_of(value: Any) -> Optional[str]:
    """A constant as Python writes it, where `tl` and `torch` are known; None for what is none."""
    if type(value).__name__ == "constexpr" and _is_tritons(type(value)):
        inner = code_of(value.value)
        return None if inner is None else "tl.constexpr(%s)" % inner
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return code_of(value.item())
    if isinstance(value, enum.Enum):
        return code_of(value.value) if isinstance(value, (int, str)) else None
    if value is None or isinstance(value, (bool, str)):
        return repr(value)
    if isinstance(value, int):
        return repr(int(value))
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else 'float("%s")' % float(value)
    return _sequence(value) if type(value) in (tuple, list) else _dtype(value)


def _sequence(value: Any) -> Optional[str]:
    parts = [code_of(each) for each in value]
    if None in parts:
        return None
    inner = ", ".join(str(part) for part in parts)
    if isinstance(value, list):
        return "[%s]" % inner
    return "(%s,)" % inner if len(parts) == 1 else "(%s)" % inner


def _dtype(value: Any) -> Optional[str]:
    """torch.float32 as "torch.float32", Triton's fp32 as "tl.float32"."""
    if not any(base.__name__ == "dtype" for base in type(value).__mro__):
        return None
    if type(value).__module__.partition(".")[0] == "torch":
        return str(value)
    language = sys.modules.get("triton.language")
    for name, each in vars(language).items() if _is_tritons(type(value)) else ():
        if type(each) is type(value) and each == value and name.rstrip("0123456789e") != "fp":
            return "tl." + name
    return None


def _importable(value: Any, name: str) -> Optional[Tuple[str, str]]:
    """The module and the name from which Triton's, torch's and Python's own objects are had."""
    named = _before_patches(plain_function(value) if is_function(value) else value)
    if not isinstance(named, (type, FunctionType, BuiltinFunctionType)):
        return None
    module, own = str(named.__module__), named.__name__
    if not _is_everywhere(module):
        return None
    for place in ("triton.language", "triton", module):
        for each in (own, name):
            found = getattr(sys.modules.get(place), each, None)
            if found is value or found is named:
                return place, each
    for place in (module, "triton.language"):  # where an interpreter's function stands for it
        for each in (own, name):
            if hasattr(sys.modules.get(place), each):
                return place, each
    return None


def _before_patches(value: Any) -> Any:
    """What Triton's interpreter put a function of its own in the place of, for good.

    A module that is imported after the first launch takes that for Triton's.
    """
    while isinstance(value, FunctionType) and value.__module__ == "triton.runtime.interpreter":
        before = (value.__kwdefaults__ or {}).get("member")
        if before is None:
            break
        value = before
    return value


def _is_everywhere(module: str) -> bool:
    return module.partition(".")[0] in _EVERYWHERE


def _is_tritons(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "triton"


def _a(value: Any) -> str:
    """What kind of thing a value is, as people say it."""
    if isinstance(value, type):
        return "the class %s.%s" % (value.__module__, value.__qualname__)
    return "which is %s.%s" % (type(value).__module__, type(value).__qualname__)


# -- where things come from ------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def home(module: str) -> Dict[str, Any]:
    """The distribution that a module was installed with, and its version; {} where it was not.

    One that is only linked to from where its author works is not installed in this sense.
    """
    source = getattr(sys.modules.get(module), "__file__", None)
    parts = module.split(".")
    if not source or module == "__main__":
        return {}
    root = os.path.dirname(os.path.abspath(source))
    if os.path.basename(source).startswith("__init__."):
        root = os.path.dirname(root)
    for _ in parts[1:]:
        root = os.path.dirname(root)
    inside = os.path.relpath(os.path.abspath(source), root).replace(os.sep, "/")
    # Debian installs such folders without a list of files; so does whoever builds in place.
    ends = (".dist-info", ".egg-info") if root.endswith("-packages") else (".dist-info",)
    for entry in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        if entry.endswith(ends):
            found = _distribution(os.path.join(root, entry), inside, parts[0])
            if found:
                return found
    return {}


def _distribution(folder: str, inside: str, top: str) -> Dict[str, Any]:
    files = _lines(os.path.join(folder, "RECORD"))
    owns = any(line.startswith((inside + ",", '"' + inside + '",')) for line in files)
    if not files:
        owns = top in _lines(os.path.join(folder, "top_level.txt"))
    linked = any('"editable": true' in line for line in _lines(folder + "/direct_url.json"))
    if not owns or linked:
        return {}
    found: Dict[str, Any] = {}
    for name in ("METADATA", "PKG-INFO"):
        for line in _lines(os.path.join(folder, name)):
            key, colon, value = line.partition(": ")
            if not line:
                break
            if colon and key in ("Name", "Version"):
                found.setdefault("distribution" if key == "Name" else "version", value.strip())
    return found if "distribution" in found else {}


def _lines(path: str) -> List[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read().split("\n")
    except OSError:
        return []


def _attribute_of(value: Any, name: str) -> Tuple[List[str], bool]:
    """Where an attribute is defined: its module and name, and whether it is a constexpr there."""
    if not isinstance(value, ModuleType):
        return [], False
    notes = vars(value).get("__annotations__", {})
    origin = _defined(value.__name__, name)
    return origin, "constexpr" in str(notes.get(name, ""))


def _imported(function: FunctionType, name: str) -> List[str]:
    """The module that gives a global of a function its value, and its name there."""
    return _defined(function.__module__, name)


def _defined(module: str, name: str) -> List[str]:
    """Follow `from X import NAME` to the first module that was installed, or to where it ends."""
    for _ in range(_MOST_HOPS):
        if home(module):
            break
        before = _import_of(module, name)
        if before is None:
            break
        module, name = before
    return [module, name]


def _import_of(module: str, name: str) -> Optional[Tuple[str, str]]:
    """From where a module imports a name of its own; None where it makes it."""
    base, own = _imports(module).get(name, ("", ""))
    return (base, own) if hasattr(sys.modules.get(base), own or " ") else None


@functools.lru_cache(maxsize=None)
def _imports(module: str) -> Dict[str, Tuple[str, str]]:
    """What a module's text imports from others: its name there, the module and the name in that."""
    loaded = sys.modules.get(module)
    source = getattr(loaded, "__file__", None)
    try:
        tree = ast.parse("\n".join(_lines(source)) if source else "")
    except SyntaxError:
        return {}
    package = getattr(loaded, "__package__", None) or module
    return {
        alias.asname or alias.name: (_base(node, package), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _base(node: ast.ImportFrom, package: str) -> str:
    """The module that `from … import` names."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
