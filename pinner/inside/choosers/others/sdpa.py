"""torch's scaled dot product attention: which backends are enabled, and in which order asked.

Which of them takes a call follows from these flags, the inputs and the GPU; nothing is timed. The
enabled backends and their order are forced right after torch is imported (they change between
releases: cuDNN came first in 2.5), and the flags are read again when attention is first looked up,
after the first step, and at the end. A program that switches them for a while, by
`torch.nn.attention.sdpa_kernel`, does so alike in each run; that it does is recorded.

On a GPU the backward passes of all backends but math's add in any order, a hole, unless
`torch.use_deterministic_algorithms(True)` is on: with warn_only it does nothing here.

Used means looked up: `torch.nn.functional.scaled_dot_product_attention`, by that name, or
`multi_head_attention_forward`, which calls it. (torch 2.13, torch/nn/attention/__init__.py)
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from . import first_use, looks, settings

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, List, Sequence

CHOOSER = "sdpa"
BACKENDS = "backends"
_FUNCTIONS = ("scaled_dot_product_attention", "multi_head_attention_forward")
_SWITCHES = ("sdpa_kernel", "_sdpa_kernel")
_BY_NUMBER = {0: "math", 1: "flash", 2: "mem_efficient", 3: "cudnn"}  # at::SDPBackend
_TEXT = "the inputs decide among these, in this order"
_ANY_ORDER = (
    "backward passes add in any order: call torch.use_deterministic_algorithms(True), without "
    "warn_only"
)
# Parts of torch that look functions up to list, trace or test them. A layer of torch's, and
# Dynamo when it meets a call in a program, are uses.
_USERS_IN_TORCH = (
    "torch.nn.modules.",
    "torch._dynamo.symbolic_convert",
    "torch._dynamo.variables.builder",
    "torch._dynamo.variables.misc",
)

_used = False


def install(torch: ModuleType) -> None:
    """Force the locked backends, and wait for the first use of attention."""
    wanted = settings.forced(CHOOSER).get(BACKENDS)
    if isinstance(wanted, list):
        _enable(torch, wanted)
    first_use.watch(torch.nn.functional, _FUNCTIONS, _seen)
    attention = sys.modules.get("torch.nn.attention")
    if attention is not None:
        first_use.watch(attention, _SWITCHES, _switched)
    looks.at_looks(_look)


def _seen(_name: str, by: str) -> bool:
    global _used
    if not _is_user(by):
        return False
    _used = True
    _look()
    return True


def _switched(_name: str, by: str) -> bool:
    if not _is_user(by):
        return False
    text = "the program chooses backends as it runs, with torch.nn.attention.sdpa_kernel"
    settings.report(CHOOSER, "sdpa_kernel", True, settings.RECORDED, text)
    return True


def _is_user(module: str) -> bool:
    inside = module == "torch" or module.startswith("torch.")
    return not inside or module.startswith(_USERS_IN_TORCH)


def _look() -> None:
    if _used:
        report(sys.modules["torch"])


def report(torch: Any) -> None:
    """Write the flags in force; of the order of additions only where a GPU is in use."""
    backends = enabled(torch)
    settings.report_forced(CHOOSER, BACKENDS, backends, _TEXT)
    reduced = getattr(torch.backends.cuda, "fp16_bf16_reduction_math_sdp_allowed", None)
    if reduced is not None and "math" in backends:  # torch 2.5
        text = "whether math may add half precision in half precision"
        settings.report(CHOOSER, "reduced_math", bool(reduced()), settings.RECORDED, text)
    if not torch.cuda.is_initialized() or backends == ["math"]:
        return
    if in_order(torch):
        settings.report(CHOOSER, "deterministic", True, settings.RECORDED, "backward passes")
    else:
        settings.report(CHOOSER, "deterministic", False, settings.NOT_HELD, _ANY_ORDER)


def in_order(torch: Any) -> bool:
    """Whether backward passes add in one order."""
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return bool(torch.are_deterministic_algorithms_enabled() and not warns)


def enabled(torch: Any) -> List[str]:
    """The enabled backends, first asked first."""
    return [name for name in _order(torch) if _is_enabled(torch, name)]


def _order(torch: Any) -> List[str]:
    ask = getattr(torch._C, "_get_sdp_priority_order", None)  # torch 2.6
    numbers = list(_BY_NUMBER) if ask is None else ask()
    return [_BY_NUMBER[number] for number in numbers if number in _BY_NUMBER]


def _is_enabled(torch: Any, name: str) -> bool:
    ask = getattr(torch.backends.cuda, name + "_sdp_enabled", None)  # cuDNN's since torch 2.2
    return ask is not None and bool(ask())


def _enable(torch: Any, names: Sequence[Any]) -> None:
    for name in _BY_NUMBER.values():
        switch = getattr(torch.backends.cuda, "enable_%s_sdp" % name, None)
        if switch is not None:
            switch(name in names)
    if hasattr(torch._C, "_set_sdp_priority_order"):
        numbers = {name: number for number, name in _BY_NUMBER.items()}
        first = [numbers[name] for name in names if name in numbers]
        rest = [each for each in torch._C._get_sdp_priority_order() if each not in first]
        torch._C._set_sdp_priority_order(first + rest)
