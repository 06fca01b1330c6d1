"""What differs between Triton versions, in one place: 3.4 to 3.9 (read in their wheels)."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Tuple


def version_of(text: str) -> Tuple[int, int]:
    """(major, minor) of a Triton version string such as ``3.6.0+git1234``."""
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None:
        raise ValueError("expected a Triton version such as 3.9.0, found %r" % text)
    return int(match.group(1)), int(match.group(2))


def benches_lone_survivor(version: Tuple[int, int]) -> bool:
    """Whether `Autotuner.run` benchmarks even when pruning left one config.

    Before 3.8 it does, and then calls `pre_hook(reset_only=True)`: a forced decision must not
    run the kernel (it may accumulate, and a benchmark synchronises) nor reset its arguments.
    """
    return version < (3, 8)


def library_key(tuner: Any, nargs: Dict[str, Any], kwargs: Dict[str, Any]) -> Tuple[Any, ...]:
    """The key that `Autotuner.run` looks up in its cache (the same lines in 3.4 to 3.9)."""
    passed = {**nargs, **kwargs}
    named = {name: value for name, value in passed.items() if name in tuner.arg_names}
    key: List[Any] = [named[name] for name in tuner.keys if name in named]
    key.extend(str(value.dtype) for value in named.values() if hasattr(value, "dtype"))
    return tuple(key)


def config_fields(config: Any) -> Dict[str, Any]:
    """The fields of a `triton.Config` that decide the machine code, without defaults.

    kwargs, num_warps and num_stages always; num_ctas when it is not 1; maxnreg and ir_override
    (3.4+) when set. `pre_hook` is code and never leaves the process.
    """
    fields = dict(config.kwargs)
    fields["num_warps"] = config.num_warps
    fields["num_stages"] = config.num_stages
    if getattr(config, "num_ctas", 1) not in (1, None):
        fields["num_ctas"] = config.num_ctas
    for name in ("maxnreg", "ir_override"):
        if getattr(config, name, None) is not None:
            fields[name] = getattr(config, name)
    return fields


def interpreting() -> bool:
    """Whether kernels defined now run in Triton's interpreter (TRITON_INTERPRET=1)."""
    from triton import knobs

    return bool(knobs.runtime.interpret)
