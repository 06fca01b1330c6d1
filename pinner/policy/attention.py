"""Which attention adds in one order: always, by a switch, not, or nobody knows. Pure.

`torch.use_deterministic_algorithms` governs torch's own operations only: a custom kernel is opaque
to it, so each backend is classified by what its source says. Only backward passes are in
question; forward passes add in one order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["deterministic", "by a switch", "not", "unknown"]
VERDICTS: tuple[Verdict, ...] = ("deterministic", "by a switch", "not", "unknown")

ALGORITHMS = "torch.use_deterministic_algorithms(True), without warn_only"
_FLASH = "Dao-AILab/flash-attention 2.8.4"
_SDPA = "PyTorch 2.13, aten/src/ATen/native/transformers/cuda/"
_VERIFY = "compare two runs with `pinner verify`, or take a backend that is known"


@dataclass(frozen=True)
class Backend:
    """One backend. switch: what makes it deterministic. reason: why it is classified so.

    distributions: what to look for among the installed ones; none where torch brings it.
    namespaces: of operators that it registers.
    """

    name: str
    verdict: Verdict
    reason: str
    source: str
    switch: str = ""
    todo: str = _VERIFY
    distributions: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()


BACKENDS = (
    Backend(
        "SDPA math",
        "deterministic",
        "products and a softmax of torch's own",
        "PyTorch 2.13, aten/src/ATen/native/transformers/attention.cpp",
    ),
    Backend(
        "SDPA flash",
        "by a switch",
        "its backward pass takes the deterministic form only if asked, and never with warn_only",
        _SDPA + "attention_backward.cu",
        ALGORITHMS,
    ),
    Backend(
        "SDPA mem_efficient",
        "by a switch",
        "its backward pass splits the keys unless asked not to, and with warn_only it does",
        _SDPA + "attention_backward.cu",
        ALGORITHMS,
    ),
    Backend(
        "SDPA cuDNN",
        "not",
        "torch leaves it out where deterministic algorithms are asked for without warn_only",
        _SDPA + "sdp_utils.cpp, check_cudnn_deterministic",
        todo="ask for " + ALGORITHMS + ": another backend of torch's is taken then",
    ),
    Backend(
        "flash-attn 2",
        "by a switch",
        "the parts of dQ are added by atomics unless a call says deterministic=True (from 2.4.1)",
        f"{_FLASH}, flash_attn/flash_attn_interface.py",
        "deterministic=True",
        distributions=("flash-attn",),
        namespaces=("flash_attn",),
    ),
    Backend(
        "flash-attn 3",
        "by a switch",
        "the parts of dQ are added by atomics unless a call says deterministic=True; a call of the "
        "operator itself, torch.ops.flash_attn_3, has a backward pass without it",
        f"{_FLASH}, hopper/flash_attn_interface.py",
        "deterministic=True",
        distributions=("flash-attn-3",),
        namespaces=("flash_attn_3",),
    ),
    Backend(
        "flash-attn 4",
        "by a switch",
        "the parts of dQ are added by atomics unless a call says deterministic=True",
        f"{_FLASH}, flash_attn/cute/interface.py",
        "deterministic=True",
        distributions=("flash-attn-4",),
    ),
    Backend(
        "xFormers",
        "unknown",
        "its dispatch takes what fits the inputs, and its backward passes take no deterministic",
        "facebookresearch/xformers, xformers/ops/fmha/flash.py (00afc1234)",
        todo="take torch's own attention, or " + _VERIFY,
        distributions=("xformers",),
        namespaces=("xformers", "xformers_flash", "xformers_python"),
    ),
    Backend(
        "FlexAttention, Triton",
        "by a switch",
        "each block adds in one order, but gradients of tensors that score_mod captures are "
        "scattered by atomics: capture none that requires a gradient",
        "PyTorch 2.13, torch/_inductor/kernel/flex/common.py; pytorch/pytorch#137452",
        "no captured tensor that requires a gradient",
    ),
    Backend(
        "FlexAttention, BACKEND='FLASH'",
        "by a switch",
        "deterministic only where asked for; where it cannot be with a block mask it raises, and "
        "with warn_only warns",
        "PyTorch 2.13, torch/_inductor/kernel/flex/flex_flash_attention.py",
        ALGORITHMS,
    ),
    Backend(
        "TransformerEngine",
        "by a switch",
        "with the variable at its default some backward passes add in any order",
        "NVIDIA/TransformerEngine 2.20, …/attention/dot_product_attention/utils.py",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO=0",
        distributions=("transformer-engine",),
    ),
    Backend(
        "diffusers' dispatch",
        "by a switch",
        "it adds nothing of its own: what it calls decides, and its calls of flash-attn 3 pass "
        "deterministic=False unless told",
        "huggingface/diffusers, src/diffusers/models/attention_dispatch.py (002e7ef84)",
        "the backend's own; set_attention_backend chooses it",
        distributions=("diffusers",),
    ),
    Backend(
        "SageAttention",
        "unknown",
        "quantized kernels, whose order of additions nobody has described",
        "thu-ml/SageAttention",
        distributions=("sageattention",),
    ),
    Backend(
        "NATTEN",
        "unknown",
        "kernels of its own, not classified here",
        "SHI-Labs/NATTEN",
        distributions=("natten",),
    ),
)
_BY_NAME = {backend.name: backend for backend in BACKENDS}


def flash(name: str, functions: Mapping[str, bool]) -> Backend:
    """How an installed flash backend stands, by its functions and whether they take
    `deterministic`. One that has none which does cannot be made to."""
    known = _BY_NAME[name]
    if not functions:
        reason = "its functions cannot be read here"
        return Backend(name, "unknown", reason, known.source, distributions=known.distributions)
    if not any(functions.values()):
        found = ", ".join(sorted(functions))
        reason = f"none of its functions takes `deterministic`: {found}"
        return Backend(name, "not", reason, known.source, distributions=known.distributions)
    return known


def installed(facts: Mapping[str, Any]) -> Iterator[tuple[str, Backend]]:
    """The backends among the installed distributions, but for flash-attn, which `flash` judges."""
    for backend in BACKENDS:
        for name in backend.distributions:
            if name in facts and not backend.name.startswith("flash-attn"):
                yield name, backend


def classified(namespace: str) -> bool:
    """Whether the operations of a namespace belong to a backend of the table."""
    return any(namespace in backend.namespaces for backend in BACKENDS)
