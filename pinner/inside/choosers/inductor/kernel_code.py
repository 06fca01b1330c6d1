"""Reads the machine code of a kernel that `CachingAutotuner` launches."""

from __future__ import annotations

from typing import Any, Dict, Optional

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


def read_code(tuner: Any, launcher: Any, config: Fields, spec: str) -> Optional[Code]:
    """The binary behind a launcher; None where this process does not hold one."""
    kernel = _kernel_of(tuner, launcher)
    if kernel is None:
        return None
    binary = _binary(kernel)
    if binary is None:
        return None
    return Code(config, spec, code_sections_digest(binary), _options(kernel), None)


def _kernel_of(tuner: Any, launcher: Any) -> Any:
    for result in tuner.compile_results:
        if result.config is launcher.config:
            return result.kernel
    return getattr(launcher, "bin", None)


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
