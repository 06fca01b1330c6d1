"""cuDNN under torch: whether convolutions are benchmarked, and which algorithms are allowed.

With `torch.backends.cudnn.benchmark` the first convolution of each shape is timed, and no switch
of torch or cuDNN takes the pick from elsewhere: a hole. Without it cuDNN's heuristic answers, the
same for one version and GPU, and `deterministic` leaves out the algorithms that add in any order.
Both flags are forced right after torch is imported. (torch 2.13, torch/backends/cudnn/__init__.py)

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
_HEURISTIC = "cuDNN's heuristic picks; algorithms that add in any order are %s"


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
        report(sys.modules["torch"].backends.cudnn)


def report(flags: Any) -> None:
    """Write the flags in force. flags: `torch.backends.cudnn`."""
    benchmark, deterministic = bool(flags.benchmark), bool(flags.deterministic)
    if benchmark:
        _report_benchmark()
    else:
        settings.report_forced(CHOOSER, _BENCHMARK, False, "nothing is timed")
    left_out = _HEURISTIC % ("left out" if deterministic else "allowed")
    settings.report_forced(CHOOSER, "deterministic", deterministic, left_out)
    settings.report(CHOOSER, "tf32", _tf32(flags), settings.RECORDED, "of convolutions")


def _report_benchmark() -> None:
    settings.report(CHOOSER, _BENCHMARK, True, settings.NOT_HELD, _TIMED)
    wanted = settings.forced(CHOOSER).get(_BENCHMARK)
    if wanted is not None:
        settings.contradicted(CHOOSER, _BENCHMARK, wanted, True)


def _tf32(flags: Any) -> Any:
    """The precision of convolutions; torch 2.9 named it anew and refuses a mixture of both."""
    precision = getattr(getattr(flags, "conv", None), "fp32_precision", None)
    if precision is not None:
        return str(precision)
    return bool(flags.allow_tf32)
