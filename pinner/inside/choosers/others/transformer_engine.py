"""TransformerEngine's attention: flash, fused (cuDNN) or its own, chosen by rules and variables.

Nothing is timed. The variables that shut backends out are forced before its attention is imported,
and read again when that first asks for a backend; what it got is recorded for each kind of call.
With NVTE_ALLOW_NONDETERMINISTIC_ALGO at its default some backward passes add in any order.
(TransformerEngine 2.20, transformer_engine/pytorch/attention/dot_product_attention/utils.py; in
one file attention.py before 2.0)
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from typing import TYPE_CHECKING

from . import settings, variables

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, List, Mapping, MutableMapping

CHOOSER = "transformer_engine"
NONDETERMINISTIC = "NVTE_ALLOW_NONDETERMINISTIC_ALGO"
VARIABLES = (
    NONDETERMINISTIC,
    "NVTE_CUTEDSL_FUSED_GROUPED_MLP",
    "NVTE_DPA_FP8CS_O_in_F16",
    "NVTE_DPA_FP8_FORMAT",
    "NVTE_DPA_FP8_RECIPE",
    "NVTE_FLASH_ATTN",
    "NVTE_FLASH_ATTN_V2",
    "NVTE_FLASH_ATTN_V3",
    "NVTE_FLASH_ATTN_V4",
    "NVTE_FP8_DPA_BWD",
    "NVTE_FUSED_ATTN",
    "NVTE_FUSED_ATTN_BACKEND",
    "NVTE_FUSED_ATTN_FORCE_WORKSPACE_OPT",
    "NVTE_FUSED_ATTN_USE_FAv2_BWD",
    "NVTE_NORM_BWD_USE_CUDNN",
    "NVTE_NORM_FWD_USE_CUDNN",
    "NVTE_UNFUSED_ATTN",
    "NVTE_USE_CUTLASS_GROUPED_GEMM",
)
_ANY_ORDER = (
    "backward passes that add in any order are allowed: set NVTE_ALLOW_NONDETERMINISTIC_ALGO=0, "
    "or call torch.use_deterministic_algorithms(True)"
)
# Neither the kind of a call nor alike in all processes.
_LEFT_OUT = ("fp8_meta", "inference_params", "batch_size")


def force(environ: MutableMapping[str, str]) -> None:
    """Set the locked variables that nobody has set."""
    variables.force_early(CHOOSER, VARIABLES, environ)


def install(module: ModuleType) -> None:
    """Hook where attention asks which backend to take; it keeps the answer for calls alike."""
    variables.force(CHOOSER, VARIABLES, os.environ)
    original = getattr(module, "get_attention_backend", None)
    if original is None or original.__module__ != module.__name__:
        return
    compiling = _compiling()

    @functools.wraps(original)
    def get_attention_backend(*args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        if not compiling():
            given = args[0] if args else kwargs.get("attention_params")
            _report(given, answer)
        return answer

    module.get_attention_backend = get_attention_backend  # type: ignore[attr-defined]


def _compiling() -> Any:
    """torch's own question, which a compiler that traces it answers by itself."""
    compiler = getattr(sys.modules["torch"], "compiler", None)
    return getattr(compiler, "is_compiling", None) or (lambda: False)


def _report(given: Any, answer: Any) -> None:
    variables.report(CHOOSER, VARIABLES, os.environ)
    deterministic = _deterministic(given, os.environ)
    name = "deterministic attention"
    if deterministic:
        settings.report(CHOOSER, name, True, settings.RECORDED, "")
    else:
        settings.report(CHOOSER, name, False, settings.NOT_HELD, _ANY_ORDER)
    text = "the backend that was taken for one kind of attention"
    settings.report(CHOOSER, name_of(given), backend_of(answer), settings.RECORDED, text)


def _deterministic(given: Any, environ: Mapping[str, str]) -> bool:
    found = getattr(given, "deterministic", None)
    return environ.get(NONDETERMINISTIC, "1") == "0" if found is None else bool(found)


def name_of(given: Any) -> str:
    """What a kind of attention is called: its layout, and a digest of the rest."""
    fields = sorted(getattr(given, "__dataclass_fields__", ()))
    kept = [(name, _text(getattr(given, name))) for name in fields if name not in _LEFT_OUT]
    digest = hashlib.sha256(repr(kept).encode("utf-8")).hexdigest()[:12]
    return "attention %s %s" % (getattr(given, "qkv_layout", ""), digest)


def _text(value: Any) -> str:
    return value.__qualname__ if isinstance(value, type) else str(value)


def backend_of(answer: Any) -> List[str]:
    """The backend and its kind, from the answer's flags.

    Since 2.0: flash, its version, fused, its sub-backend, unfused, those available. Before: flash,
    fused, its sub-backend, unfused, those available.
    """
    if len(answer) == 5:
        flash, fused, sub_backend, unfused = answer[:4]
        version = None
    else:
        flash, version, fused, sub_backend, unfused = answer[:5]
    if flash:
        return ["flash", "" if version is None else str(version)]
    if fused:
        return ["fused", str(sub_backend)]
    return ["unfused" if unfused else "none"]
