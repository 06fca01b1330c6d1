"""A run of fla-core's kernels, unmodified, under Triton's interpreter; each output is evidence.

TIMER and TIMER_SEED as in tuned_run. FLA_CACHE_MODE and FLA_CONFIG_DIR are fla-core's own.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch

import pinner
from tests.workloads import third_party, tuned_run


def main() -> None:
    """Run every kernel once."""
    torch.set_num_threads(1)
    tuned_run.lie_about_time()
    for name, value in third_party.outputs().items():
        pinner.fingerprint(name, value)


if __name__ == "__main__":
    main()
