"""Switches of Inductor that are set alike when observing and when enforcing.

Some choices by timing cannot be forced one by one (whether two kernels are fused, how a reduction
is split): they are switched off, which leaves Inductor's own rule. One switch is off so that
choices are made at all: Inductor's deterministic mode skips the benchmarks whose winners the lock
holds. Each switch that was found on is written down with what it was; one that was off already is
not worth a line.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from .lines import Lines


class Switch(NamedTuple):
    """One option of `torch._inductor.config`.

    found: the values that would time; off: what is set instead; needs: another option without
    which this one does nothing, or "".
    """

    name: str
    found: Tuple[Any, ...]
    off: Any
    text: str
    needs: str = ""


DETERMINISTIC = Switch(
    "deterministic",
    (True,),
    False,
    "torch.use_deterministic_algorithms(True), or the option itself, had switched it on: off, so "
    "that choices are made by timing once and are then held by the lock. Re-enabled by this: the "
    "benchmarks of algorithm selection and of pad_mm, all configs of reduction kernels, coordinate "
    "descent and the scaling of RBLOCK for reductions, reordering for overlap of computation and "
    "communication. torch's own deterministic operators stay on",
)

SWITCHES = (
    DETERMINISTIC,
    Switch(
        "benchmark_fusion",
        (True,),
        False,
        "whether a fusion pays was decided by timing; off: every legal fusion is made",
    ),
    Switch(
        "benchmark_combo_kernel",
        (True,),
        False,
        "whether a combo kernel pays was decided by timing; off: all are made",
    ),
    Switch(
        "triton.multi_kernel",
        (1,),
        0,
        "persistent or looped reductions were picked by timing at run time; off: Inductor's rule",
    ),
    Switch(
        "distributed_max_autotune_gemm",
        (True,),
        False,
        "ranks shared the timing of GEMMs; off: each rank's selection is recorded and forced",
    ),
    Switch(
        "runtime_estimations_mms_benchmark",
        (True,),
        False,
        "run times of GEMMs for reordering were measured; off: they are estimated",
    ),
    Switch(
        "incremental_autotune",
        (True,),
        False,
        "kernels were tuned during the first calls of a run; off: before the first",
    ),
    Switch(
        "aten_distributed_optimizations.compute_estimator",
        ("benchmark",),
        "analytical",
        "run times of operators for overlap scheduling were measured; now they are estimated",
        "aten_distributed_optimizations.enable_overlap_scheduling",
    ),
    Switch(
        "aten_distributed_optimizations.collective_estimator",
        ("benchmark",),
        "analytical",
        "run times of collectives for overlap scheduling were measured; now they are estimated",
        "aten_distributed_optimizations.enable_overlap_scheduling",
    ),
)

_MISSING = object()

# What the options were that were set for good, by name.
found: Dict[str, Any] = {}


def apply(config: Any, patches: Optional[Dict[str, Any]], lines: Lines) -> Optional[Dict[str, Any]]:
    """Set the switches in `config` for good, and in a copy of `patches`, which is returned.

    config: `torch._inductor.config`. patches: the options of one `torch.compile`, or None. For
    good, because backward graphs and kernels are compiled and tuned after the compile call ended.
    """
    own = dict(patches or {})
    for switch in SWITCHES:
        if switch.needs and not _value(config, own, switch.needs):
            continue
        value = _value(config, own, switch.name)
        if value is _MISSING or not any(value is v or value == v for v in switch.found):
            continue
        if switch.name in own:
            own[switch.name] = switch.off
        else:
            found[switch.name] = value
        setattr(config, switch.name, switch.off)
        lines.setting(switch.name, switch.off, "set", "%s (was %r)" % (switch.text, value))
    return own if patches is not None else None


def name_epilogues(lines: Lines) -> None:
    """Say how a selection is held that is settled together with the fusion of its epilogue."""
    lines.setting(
        "benchmark_epilogue_fusion",
        True,
        "set",
        "while observing, templates are timed with their epilogues, and the winner is recorded "
        "where the scheduler settles it; a forced template fuses its epilogues without timing",
    )


def patch_coordinate_descent(module: Any, lines: Lines) -> None:
    """Take the timing out of the split size of mixed-order reductions (torch 2.10 and later).

    Inductor's own figure stays; it has no name by which a lock could hold another one.
    """
    kind = module.CoordescTuner
    original = getattr(kind, "autotune_single_field", None)
    if original is None:
        return

    def autotune_single_field(
        fn: Callable[[Any], Any], init_val: Any, min_val: Any = None, max_val: Any = None
    ) -> Any:
        lines.setting(
            "triton.mix_order_reduction_autotune_split_size",
            False,
            "set",
            "the split size of mixed-order reductions would be decided by timing; now it is "
            "Inductor's own figure",
        )
        return init_val

    kind.autotune_single_field = staticmethod(functools.wraps(original)(autotune_single_field))


def patch_profiles(pgo: Any, lines: Lines) -> None:
    """Switch off profiles of earlier runs, which decide what is compiled with dynamic shapes."""
    original = pgo.get_cache_key

    @functools.wraps(original)
    def get_cache_key() -> Any:
        if original() is not None:
            lines.setting(
                "dynamo.pgo",
                False,
                "set",
                "a job id is set, so that a profile of earlier runs would decide which shapes are "
                "dynamic: not read and not written",
            )
        return None

    pgo.get_cache_key = get_cache_key


def _value(config: Any, patches: Dict[str, Any], name: str) -> Any:
    return patches[name] if name in patches else getattr(config, name, _MISSING)
