"""The source hash of a kernel: what it computes, not where its text stands.

`JITFunction.cache_key` holds the line number, so that a comment above a kernel changes it. This
hash is over the syntax tree of the kernel and of the JIT functions it calls, and over the global
constants they read. No line, comment, docstring, decorator, path or Python version takes part.

A function whose text cannot be read (made by `exec`, or shipped without source) is hashed by its
byte code, which depends on the version of Python.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from types import CodeType, FunctionType, ModuleType
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from ... import values

# The tree differs between Python versions in these fields only (3.8 to 3.13); none has a meaning.
_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_params", "decorator_list"})
_MISSING = object()


def source_hash(function: FunctionType) -> str:
    """``sha256:…`` of a kernel's own source.

    function: the plain Python function under `@triton.jit`.
    """
    parts: List[str] = []
    _collect(function, parts, set())
    return "sha256:" + hashlib.sha256("\n".join(parts).encode("utf-8")).hexdigest()


def _collect(function: FunctionType, parts: List[str], seen: Set[int]) -> None:
    seen.add(id(function))
    try:
        tree = _tree_of(function)
    except (OSError, TypeError, SyntaxError, IndexError):
        parts.append("code %s %s" % (function.__name__, _byte_code(function.__code__)))
        reads: Set[Tuple[str, ...]] = {(name,) for name in function.__code__.co_names}
    else:
        parts.append("def %s %s" % (function.__name__, _text_of(tree)))
        reads = _global_reads(tree)
    scope = scope_of(function)
    for path in sorted(reads):
        value = _resolve(path, scope)
        if value is _MISSING:
            continue
        called = _jit_function(value)
        if called is None:
            constant = _constant_text(value)
            if constant is not None:
                parts.append("global %s = %s" % (".".join(path), constant))
        elif id(called) not in seen and not _is_tritons_own(called):
            _collect(called, parts, seen)


def _tree_of(function: FunctionType) -> ast.AST:
    lines, _ = inspect.getsourcelines(function)
    module = ast.parse(textwrap.dedent("".join(lines)))
    definition = module.body[0]
    body = getattr(definition, "body", [])
    if len(body) > 1 and _is_docstring(body[0]):
        del body[0]
    return definition


def _byte_code(code: CodeType) -> str:
    constants = [
        _byte_code(value) if isinstance(value, CodeType) else repr(value)
        for value in code.co_consts
    ]
    return repr((code.co_code, code.co_names, code.co_varnames, constants))


def _is_docstring(node: ast.AST) -> bool:
    value = getattr(node, "value", None)
    return isinstance(node, ast.Expr) and isinstance(getattr(value, "value", None), str)


def _text_of(node: Any) -> str:
    """The tree as text, equal for every Python version that parses the same program."""
    if isinstance(node, list):
        return "[%s]" % ",".join(_text_of(item) for item in node)
    if not isinstance(node, ast.AST):
        return repr(node)
    if type(node).__name__ in ("Index", "ExtSlice"):  # Python 3.8 wraps subscripts in these.
        inner = getattr(node, "value", None)
        return _text_of(inner if inner is not None else getattr(node, "dims", None))
    fields = [
        "%s=%s" % (name, _text_of(value))
        for name, value in ast.iter_fields(node)
        if name not in _IGNORED_FIELDS and value is not None and value != []
    ]
    return "%s(%s)" % (type(node).__name__, ",".join(fields))


def scope_of(function: FunctionType) -> Dict[str, Any]:
    """The names that a function sees: globals, and what encloses it."""
    scope = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            scope[name] = cell.cell_contents
        except ValueError:  # the enclosing function has not assigned it yet
            continue
    return scope


def _global_reads(tree: ast.AST) -> Set[Tuple[str, ...]]:
    """Names and dotted names that the function reads and does not bind itself."""
    bound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    bound.update(
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return {path for path in _paths(tree) if path[0] not in bound}


def _paths(node: ast.AST) -> Iterator[Tuple[str, ...]]:
    path = _path_of(node)
    if path is not None:
        yield path
        return
    for child in ast.iter_child_nodes(node):
        if child not in getattr(node, "decorator_list", ()):
            yield from _paths(child)


def _path_of(node: ast.AST) -> Optional[Tuple[str, ...]]:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        base = _path_of(node.value)
        return None if base is None else base + (node.attr,)
    return None


def _resolve(path: Tuple[str, ...], scope: Dict[str, Any]) -> Any:
    value = scope.get(path[0], _MISSING)
    for name in path[1:]:
        if value is _MISSING:
            return _MISSING
        if _constant_text(value) is not None:  # `CONST.value`, a method of a constant
            return value
        if _is_tritons_own(value):
            return _MISSING
        value = getattr(value, name, _MISSING)
    return value


def _jit_function(value: Any) -> Optional[FunctionType]:
    """The Python function under a JIT function (or one of its wrappers), else None."""
    inner = getattr(value, "fn", None)
    while inner is not None and not isinstance(inner, FunctionType):
        inner = getattr(inner, "fn", None)
    return inner if isinstance(inner, FunctionType) else None


def _is_tritons_own(value: Any) -> bool:
    """Triton's own library is named by its version in the stack, not by its text."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(name, str) and (name == "triton" or name.startswith("triton."))


def _constant_text(value: Any) -> Optional[str]:
    if isinstance(value, (ModuleType, FunctionType, type)):
        return None
    try:
        return values.canonical(values.encode(value))
    except values.Unpinnable:
        return None
