"""cuDNN under torch: whether convolutions are benchmarked, and which algorithms are allowed.

With `torch.backends.cudnn.benchmark` the first convolution of each shape is timed, and no switch
of torch or cuDNN takes the pick from elsewhere: a hole. Without it cuDNN's heuristic answers, the
same for one version and GPU. It may answer with an algorithm that adds in any order, a hole too,
unless `deterministic` or `torch.use_deterministic_algorithms` leaves these out. Both flags are
forced right after torch is imported. (torch 2.13, torch/backends/cudnn/__init__.py)

cuDNN counts as used once it has mapped its engines: torch links only `libcudnn.so`, and that loads
them for the first graph it builds (cuDNN 9's libcudnn_engines_*, cuDNN 8's libcudnn_*_infer).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from . import looks, settings

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Iterable

CHOOSER = "cudnn"
_ENGINES = ("libcudnn_engines", "libcudnn_heuristic", "libcudnn_ops_infer", "libcudnn_cnn_infer")
_BENCHMARK = "benchmark"
_FLAGS = (_BENCHMARK, "deterministic")
_TIMED = "each convolution's algorithm is picked by timing: set torch.backends.cudnn.benchmark off"
_HEURISTIC = "cuDNN's heuristic picks among algorithms that add in one order"
_ANY_ORDER = "algorithms that add in any order are allowed: set torch.backends.cudnn.deterministic"


def install(torch: ModuleType) -> None:
    """Force the locked flags, before the program can set any, and look at them once used."""
    flags = torch.backends.cudnn
    wanted = settings.forced(CHOOSER)
    for name in _FLAGS:
        if name in wanted:
            setattr(flags, name, bool(wanted[name]))
    looks.at_looks(_look)


def engines_among(names: Iterable[str]) -> bool:
    """Whether cuDNN has loaded what computes, by the base names of mapped files. Pure."""
    return any(name.startswith(_ENGINES) for name in names)


def _look() -> None:
    if engines_among(looks.mapped_names()):
        report(sys.modules["torch"])


def report(torch: Any) -> None:
    """Write the flags in force."""
    flags = torch.backends.cudnn
    _report(_BENCHMARK, bool(flags.benchmark), False, "nothing is timed", _TIMED)
    strict = bool(torch.are_deterministic_algorithms_enabled())
    in_order = bool(flags.deterministic) or strict
    _report("deterministic", in_order, True, _HEURISTIC, _ANY_ORDER)
    settings.report(CHOOSER, "tf32", _tf32(flags), settings.RECORDED, "of convolutions")


def _report(name: str, value: bool, holds: bool, text: str, otherwise: str) -> None:
    """Write a flag that holds what cuDNN does with one of its values, and leaves a hole with the
    other."""
    if value is holds:
        settings.report_forced(CHOOSER, name, value, text)
        return
    settings.report(CHOOSER, name, value, settings.NOT_HELD, otherwise)
    wanted = settings.forced(CHOOSER).get(name)
    if wanted is not None:
        settings.contradicted(CHOOSER, name, wanted, value)


def _tf32(flags: Any) -> Any:
    """The precision of convolutions; torch 2.9 named it anew and refuses a mixture of both."""
    precision = getattr(getattr(flags, "conv", None), "fp32_precision", None)
    if precision is not None:
        return str(precision)
    return bool(flags.allow_tf32)
