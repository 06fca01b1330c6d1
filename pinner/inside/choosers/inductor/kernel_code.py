"""Reads the machine code of a kernel that `CachingAutotuner` launches."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

from ..triton.code import code_sections_digest
from .lines import Code, Fields

# Compile options outside the config that change bits (fields of Triton's CUDAOptions, HIPOptions).
_BIT_OPTIONS = (
    "allow_flush_denorm",
    "arch",
    "default_dot_input_precision",
    "enable_fp_fusion",
    "enable_reflect_ftz",
    "max_num_imprecise_acc_default",
    "ptx_options",
    "ptx_version",
    "sanitize_overflow",
)


def read_code(results: Sequence[Any], settled: Any, config: Fields, spec: str) -> Optional[Code]:
    """The binary of the config that was settled on; None where this process does not hold it.

    results: what was compiled, of Inductor's `CompileResult`; settled: the `triton.Config`.
    """
    kernel = next((each.kernel for each in results if each.config is settled), None)
    binary = None if kernel is None else _binary(kernel)
    if binary is None:
        return None
    digest = code_sections_digest(binary, _name(kernel))
    return Code(config, spec, digest, _options(kernel), None)


def _name(kernel: Any) -> str:
    """The kernel's name in the binary, which has a counter of the process."""
    return str(getattr(getattr(kernel, "metadata", None), "name", getattr(kernel, "name", "")))


def _binary(kernel: Any) -> Optional[bytes]:
    stored = getattr(kernel, "asm", None) or {}
    for kind in ("cubin", "hsaco"):
        if isinstance(stored.get(kind), bytes):
            return stored[kind]  # type: ignore[no-any-return]
    raw = getattr(kernel, "cubin_raw", None)  # launched statically, torch 2.8 and later
    if isinstance(raw, bytes):
        return raw
    path = getattr(kernel, "cubin_path", None)
    if not isinstance(path, str):
        return None
    try:
        with open(path, "rb") as source:
            return source.read()
    except OSError:
        return None


def _options(kernel: Any) -> Dict[str, Any]:
    metadata = getattr(kernel, "metadata", None)
    found = {name: getattr(metadata, name, None) for name in _BIT_OPTIONS}
    return {n: value for n, value in found.items() if isinstance(value, (bool, int, float, str))}
