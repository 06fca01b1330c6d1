"""What one candidate of Inductor's algorithm selection is, without names that a process counted.

`hash_key()` will not do for all of them: the hash of a Triton template's source holds the index
of the device (torch 2.13), so that two ranks would never agree.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ... import values
from ..triton.decide import Live, live_configs
from .question import without_counter, without_place

Fields = Dict[str, Any]

_BACKENDS = {
    "ExternKernelCaller": "extern",
    "TritonTemplateCaller": "triton",
    "CppTemplateCaller": "cpp",
    "CUTLASSTemplateCaller": "cutlass",
    "CUDATemplateCaller": "cutlass",  # its name before 2.10
    "ROCmTemplateCaller": "ck",
    "CuteDSLTemplateCaller": "cutedsl",
    "NVUniversalGemmCaller": "nvgemm",
    "SubgraphChoiceCaller": "subgraph",
}
_PAIR = re.compile(r",\s*(?=\w+=)")
_FROM_INFO = ("op_name", "swizzle", "kernel_name")
_INCLUDE = re.compile(r"^#include .*$", re.MULTILINE)


class Candidates(NamedTuple):
    """The candidates of one selection.

    live: in the library's order; refusal: why they cannot be told apart, or "".
    """

    live: List[Live]
    refusal: str


def candidates(choices: Sequence[Any]) -> Candidates:
    """The candidates as they are pinned; hashes are added only where fields are not enough."""
    fields = [fields_of(choice) for choice in choices]
    texts = [values.canonical(each) for each in fields]
    counts = Counter(texts)
    for number, choice in enumerate(choices):
        if counts[texts[number]] > 1:
            fields[number] = {**fields[number], "hash": _short_hash(choice)}
    live = live_configs(list(zip(fields, choices)))
    distinct = {candidate.text for candidate in live}
    refusal = "" if len(distinct) == len(live) else "two candidates cannot be told apart"
    return Candidates(live, refusal)


def fields_of(choice: Any) -> Fields:
    """Backend, kernel or template, and the parameters it was made with."""
    backend = backend_of(choice)
    name = without_counter(str(choice.name))
    if backend == "extern":
        return {"backend": backend, "kernel": str(choice.name)}
    fields: Fields = {"backend": backend, "template": name}
    fields.update(_described(str(getattr(choice, "description", "") or "")))
    if backend in ("cutlass", "ck", "nvgemm"):
        info = choice.info_dict()
        fields.update((name, str(info[name])) for name in _FROM_INFO if name in info)
    return fields


def backend_of(choice: Any) -> str:
    """The short name of the backend: "extern", "triton", "cpp", …"""
    kind = type(unwrapped(choice)).__name__
    return _BACKENDS.get(kind, kind)


def unwrapped(choice: Any) -> Any:
    """The caller under the wrappers that reorder its inputs."""
    while "_wrapped" in getattr(choice, "__dict__", {}):
        choice = choice._wrapped
    return choice


def source_digest(choice: Any) -> Optional[str]:
    """``sha256:…`` of the C++ that a candidate generated; None for other candidates.

    Its includes are left out: older versions name a file in a temporary folder.
    """
    request = getattr(unwrapped(choice), "bmreq", None)
    source = getattr(request, "source_code", None)
    if backend_of(choice) != "cpp" or not isinstance(source, str):
        return None
    text = _INCLUDE.sub("", source)
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()


def _described(description: str) -> Fields:
    if not description:
        return {}
    pairs = [part.partition("=") for part in _PAIR.split(description)]
    if not all(equals and name.isidentifier() for name, equals, _ in pairs):
        return {"description": without_place(description)}
    return {name: _value(text) for name, _, text in pairs}


def _value(text: str) -> Any:
    try:
        return values.encode(ast.literal_eval(text))
    except (ValueError, SyntaxError, values.Unpinnable):
        return without_place(text)


def _short_hash(choice: Any) -> str:
    return short_digest(without_place(str(choice.hash_key())))


def short_digest(text: str) -> str:
    """16 hex digits for a text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def texts_of_extern(live: Sequence[Live]) -> Tuple[str, ...]:
    """The candidates that are kernels of a library, which no benchmark had to choose."""
    return tuple(each.text for each in live if each.fields.get("backend") == "extern")
