"""Names a kernel of `CachingAutotuner`, its source and what its config depends on.

Nothing of it depends on the process: names lose their counter, and the device its index.
"""

from __future__ import annotations

import hashlib
import io
import re
import tokenize
from typing import Any, Dict, List, Set

from ... import values
from .question import Question, ask, without_counter

_FUNCTION = re.compile(r"^\s*def\s+\w+", re.MULTILINE)
_IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*\b")
_NO_MEANING = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)


def question_of(tuner: Any) -> Question:
    """The question that an autotuner asks: kernel, source, and the facts that decide."""
    name = without_counter(str(tuner.inductor_meta.get("kernel_name") or tuner.fn.__name__))
    kind = "user_triton" if tuner.custom_kernel else "triton"
    return ask("%s:%s" % (kind, name), source_of(tuner.fn), _facts(tuner))


def source_of(function: Any) -> str:
    """``sha256:…`` of a `JITFunction`, of the ones it calls, and of the constants they read.

    The kernel's own name is left out (it holds a counter), and so are comments and spacing.
    """
    parts: List[str] = [_FUNCTION.sub("def kernel", _tokens(function.src), count=1)]
    _collect(function, parts, {id(function)})
    return "sha256:" + hashlib.sha256("\n".join(parts).encode("utf-8")).hexdigest()


def _collect(function: Any, parts: List[str], seen: Set[int]) -> None:
    scope = getattr(function, "__globals__", None) or {}
    for name in sorted(set(_IDENTIFIER.findall(function.src))):
        value = scope.get(name)
        if value is None or id(value) in seen:
            continue
        if hasattr(value, "src") and hasattr(value, "arg_names"):
            if not _is_library(str(value.__module__)):
                seen.add(id(value))
                parts.append("%s %s" % (name, _tokens(value.src)))
                _collect(value, parts, seen)
            continue
        try:
            parts.append("%s = %s" % (name, values.canonical(values.encode(value))))
        except values.Unpinnable:
            continue


def _is_library(module: str) -> bool:
    """Whether a function is part of Triton or torch, which the stack's versions stand for.

    Generated code lives in modules below `torch._inductor.runtime.compile_tasks`.
    """
    if module.startswith("torch."):
        return ".compile_tasks." not in module
    return module.split(".", maxsplit=1)[0] == "triton"


def _tokens(source: str) -> str:
    try:
        found = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, IndentationError):
        return source
    words = []
    for token in found:
        if token.type in (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE):
            words.append("<%s>" % tokenize.tok_name[token.type])
        elif token.type not in _NO_MEANING:
            words.append(token.string)
    return " ".join(words)


def _facts(tuner: Any) -> Dict[str, Any]:
    meta = tuner.triton_meta
    facts: Dict[str, Any] = {
        "device": str(tuner.device_props.type),
        "heuristic": str(getattr(tuner.heuristic_type, "name", tuner.heuristic_type)).lower(),
        "signature": ", ".join("%s: %s" % item for item in meta.get("signature", {}).items()),
    }
    facts.update(_size_hints(tuner.size_hints))
    for name, value in sorted(meta.get("constants", {}).items(), key=str):
        facts["constant %s" % (name,)] = _plain(value)
    divisible = _divisible(meta.get("configs") or ())
    if divisible:
        facts["divisible_by_16"] = divisible
    return facts


def _size_hints(hints: Any) -> Dict[str, Any]:
    """The rounded lengths a kernel is tuned for; a list before torch 2.6."""
    if not hints:
        return {}
    items = hints.items() if isinstance(hints, dict) else enumerate(hints)
    return {"size_%s" % name: int(value) for name, value in items}


def _divisible(attributes: Any) -> List[int]:
    """Positions of arguments known to be divisible by 16."""
    if not attributes:
        return []
    first = attributes[0]
    if isinstance(first, dict):  # Triton 3.3 and later: {(0,): [["tt.divisibility", 16]], …}
        return sorted(position[0] for position in first if isinstance(position, tuple))
    return sorted(int(n) for n in getattr(first, "divisible_by_16", None) or ())


def _plain(value: Any) -> Any:
    try:
        values.encode(value)
    except values.Unpinnable:
        return values.type_name(value)
    return value
