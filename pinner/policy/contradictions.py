"""Variables of the environment that ask for opposite things. Pure.

One of the two wins by a rule of the library that nobody has in mind, so that what is in force is
not what stands in the job's script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pinner.inside.policy_rules import tokens_of

Environ = Mapping[str, str]


@dataclass(frozen=True)
class Contradiction:
    """names: the variables. holds: whether they contradict each other in an environment."""

    names: tuple[str, ...]
    holds: Callable[[Environ], bool]
    reason: str
    todo: str
    source: str


def _is(name: str, value: str) -> Callable[[Environ], bool]:
    return lambda environ: environ.get(name) == value


def _every(*tests: Callable[[Environ], bool]) -> Callable[[Environ], bool]:
    return lambda environ: all(test(environ) for test in tests)


def _asks_for(prefix: str) -> Callable[[Environ], bool]:
    """Whether NCCL_ALGO names an algorithm; after ^ it shuts out what it names."""

    def test(environ: Environ) -> bool:
        tokens = tokens_of(environ.get("NCCL_ALGO", ""))
        return any(token.lower().startswith(prefix) for token in tokens)

    return test


def _channels_crossed(environ: Environ) -> bool:
    least, most = environ.get("NCCL_MIN_NCHANNELS", ""), environ.get("NCCL_MAX_NCHANNELS", "")
    return least.isdigit() and most.isdigit() and int(least) > int(most)


CONTRADICTIONS = (
    Contradiction(
        ("NCCL_ALGO", "NCCL_NVLS_ENABLE"),
        _every(_asks_for("nvls"), _is("NCCL_NVLS_ENABLE", "0")),
        "the one asks for sums in the NVLink switch, the other shuts them out",
        "take NVLS out of NCCL_ALGO",
        "NVIDIA/nccl, docs of NCCL_ALGO and NCCL_NVLS_ENABLE",
    ),
    Contradiction(
        ("NCCL_ALGO", "NCCL_COLLNET_ENABLE"),
        _every(_asks_for("collnet"), _is("NCCL_COLLNET_ENABLE", "0")),
        "the one asks for sums in the network, the other shuts them out",
        "take Collnet out of NCCL_ALGO, or set NCCL_COLLNET_ENABLE=1",
        "NVIDIA/nccl, docs of NCCL_ALGO and NCCL_COLLNET_ENABLE",
    ),
    Contradiction(
        ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
        _channels_crossed,
        "the least number of channels is above the most",
        "set both to the same number",
        "NVIDIA/nccl, docs of NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS",
    ),
    Contradiction(
        ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
        _every(_is("NVIDIA_TF32_OVERRIDE", "0"), _is("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")),
        "torch is told to use TF32, and NVIDIA's libraries never to",
        "unset TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "cuBLAS manual, section on NVIDIA_TF32_OVERRIDE; PyTorch 2.13, aten/src/ATen/Context.h",
    ),
    Contradiction(
        ("TRITON_DEFAULT_FP_FUSION", "TRITON_FORCE_DISABLE_FP_FUSION"),
        _every(_is("TRITON_DEFAULT_FP_FUSION", "1"), _is("TRITON_FORCE_DISABLE_FP_FUSION", "1")),
        "the second overrides the first, and what each kernel says of itself",
        "unset TRITON_FORCE_DISABLE_FP_FUSION, or set TRITON_DEFAULT_FP_FUSION=0",
        "triton-lang/triton 3.9, python/triton/knobs.py",
    ),
    Contradiction(
        ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"),
        _every(
            _is("NVTE_FLASH_ATTN", "0"), _is("NVTE_FUSED_ATTN", "0"), _is("NVTE_UNFUSED_ATTN", "0")
        ),
        "every backend of TransformerEngine's attention is shut out",
        "leave one of them on",
        "NVIDIA/TransformerEngine 2.20, …/attention/dot_product_attention/utils.py",
    ),
    Contradiction(
        ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "FLASH_ATTENTION_DETERMINISTIC"),
        _every(
            _is("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0"), _is("FLASH_ATTENTION_DETERMINISTIC", "0")
        ),
        "attention is to add in one order under TransformerEngine, and in any under Transformers",
        "set FLASH_ATTENTION_DETERMINISTIC=1",
        "huggingface/transformers, src/transformers/modeling_flash_attention_utils.py",
    ),
)


def contradicting(environ: Environ) -> tuple[Contradiction, ...]:
    """Those of the table that hold in an environment."""
    return tuple(each for each in CONTRADICTIONS if each.holds(environ))
