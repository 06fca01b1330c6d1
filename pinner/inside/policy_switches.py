"""The switches of torch that a policy profile can hold: how each is read and set, by its name.

Values are plain: booleans, texts, and pairs as lists. A switch that this torch does not have reads
as None. Nothing here imports torch: the caller hands it in.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, NamedTuple, Tuple

ALGORITHMS = "torch.use_deterministic_algorithms"
INDUCTOR = "torch._inductor.config.deterministic"
OFF, WARN, ERROR = "off", "warn_only", "error"


class Switch(NamedTuple):
    """One switch. values: every value that it can have.

    read: value in force, or None; write: sets a value.
    """

    values: Tuple[Any, ...]
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], object]


def _algorithms(torch: Any) -> Any:
    if not torch.are_deterministic_algorithms_enabled():
        return OFF
    return WARN if torch.is_deterministic_algorithms_warn_only_enabled() else ERROR


def _set_algorithms(torch: Any, value: Any) -> None:
    torch.use_deterministic_algorithms(value != OFF, warn_only=value == WARN)


def _flag(*path: str) -> Switch:
    """A boolean attribute of an object that torch brings."""

    def read(torch: Any) -> Any:
        owner = _owner(torch, path)
        value = None if owner is None else getattr(owner, path[-1], None)
        return value if isinstance(value, bool) else None

    def write(torch: Any, value: Any) -> None:
        setattr(_owner(torch, path), path[-1], value)

    return Switch((False, True), read, write)


def _owner(torch: Any, path: Tuple[str, ...]) -> Any:
    owner = torch
    for name in path[:-1]:
        owner = getattr(owner, name, None)
    return owner


def _reduction(kind: str) -> Switch:
    """Reduced precision in reductions of GEMMs: [allowed, split-K allowed]; the second since 2.10,
    where the attribute takes a pair and still reads as one boolean."""
    name = "allow_%s_reduced_precision_reduction" % kind

    def read(torch: Any) -> Any:
        matmul = torch.backends.cuda.matmul
        allowed = getattr(matmul, name, None)
        if allowed is None:
            return None
        split = getattr(matmul, name + "_split_k", None)
        return [allowed] if split is None else [allowed, split]

    def write(torch: Any, value: Any) -> None:
        matmul = torch.backends.cuda.matmul
        several = getattr(matmul, name + "_split_k", None) is not None
        setattr(matmul, name, tuple(value) if several else value[0])

    return Switch(([False], [True], *([a, b] for a in _BOTH for b in _BOTH)), read, write)


_BOTH = (False, True)


def _tf32(path: Tuple[str, ...], precisions: Tuple[Tuple[str, ...], ...]) -> Switch:
    """TF32: written by the older name, which leaves both names readable; read by the newer ones
    (torch 2.9), since the older one raises once a program has used the newer."""

    def read(torch: Any) -> Any:
        found = [_read_path(torch, each) for each in precisions]
        told = [each for each in found if each is not None]
        return any(each == "tf32" for each in told) if told else _read_path(torch, path)

    def write(torch: Any, value: Any) -> None:
        setattr(_owner(torch, path), path[-1], value)

    return Switch(_BOTH, read, write)


def _read_path(torch: Any, path: Tuple[str, ...]) -> Any:
    owner = _owner(torch, path)
    return None if owner is None else getattr(owner, path[-1], None)


def _inductor(_torch: Any) -> Any:
    """What it was before pinner's chooser for Inductor switched it off, if that has compiled."""
    config = sys.modules.get("torch._inductor.config")
    if config is None:
        return None
    switches = sys.modules.get(__package__ + ".choosers.inductor.switches")
    found = {} if switches is None else switches.found
    return found.get("deterministic", getattr(config, "deterministic", None))


def _set_inductor(_torch: Any, value: Any) -> None:
    import importlib

    importlib.import_module("torch._inductor.config").deterministic = value  # type: ignore[attr-defined]


_MATMUL = ("backends", "cuda", "matmul")
_CUDNN = ("backends", "cudnn")

SWITCHES: Dict[str, Switch] = {
    ALGORITHMS: Switch((OFF, WARN, ERROR), _algorithms, _set_algorithms),
    "torch.backends.cudnn.benchmark": _flag(*_CUDNN, "benchmark"),
    "torch.backends.cudnn.deterministic": _flag(*_CUDNN, "deterministic"),
    "torch.backends.cudnn.allow_tf32": _tf32(
        (*_CUDNN, "allow_tf32"),
        ((*_CUDNN, "conv", "fp32_precision"), (*_CUDNN, "rnn", "fp32_precision")),
    ),
    "torch.backends.cuda.matmul.allow_tf32": _tf32(
        (*_MATMUL, "allow_tf32"), ((*_MATMUL, "fp32_precision"),)
    ),
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": _reduction("bf16"),
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": _reduction("fp16"),
    "torch.backends.cuda.matmul.allow_fp16_accumulation": _flag(
        *_MATMUL, "allow_fp16_accumulation"
    ),
    "torch.utils.deterministic.fill_uninitialized_memory": _flag(
        "utils", "deterministic", "fill_uninitialized_memory"
    ),
    INDUCTOR: Switch(_BOTH, _inductor, _set_inductor),
}
