"""Names of environment variables that no library reads: misspelt ones. Pure.

Those that a profile knows (`phantom = true`, such as NCCL_DETERMINISTIC) are its own. Here: a
variable that pinner does not know and that is a letter or two away from one that it knows.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from pinner.inside.choosers.others import deep_gemm, nccl, transformer_engine, tunableop
from pinner.inside.facts import CPU_SWITCHES, SWITCHES

# Two letters of twenty-five: NCCL_MIN_CTAS and NCCL_MAX_CTAS are further apart.
NEAR = 0.93

KNOWN = frozenset(
    (
        *SWITCHES,
        *CPU_SWITCHES,
        *nccl.VARIABLES,
        *transformer_engine.VARIABLES,
        *deep_gemm.VARIABLES,
        tunableop.ENABLED,
        tunableop.TUNING,
    )
)
"""Variables that libraries read and pinner looks at, beside those of the profiles."""


def misspelt(environ: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """The set variables that are most likely misspelt, with the name that was meant.

    more: further names that libraries read, those of the profile's rules.
    """
    known = sorted(KNOWN | set(more))
    found = {}
    for name in sorted(environ):
        if name in known or "_" not in name:
            continue
        close = difflib.get_close_matches(name.upper(), known, n=1, cutoff=NEAR)
        if close:
            found[name] = close[0]
    return found
