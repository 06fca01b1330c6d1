"""A run whose kernels are compiled for sm_90 and launched nowhere: machine code without a GPU.

Its evidence is what the program counts itself: what the kernels would leave is not there.
"""

from __future__ import annotations

import torch

import pinner
from tests.fakes import noop_driver, timers
from tests.workloads import kernels


def main() -> None:
    """Two steps of two kernels."""
    noop_driver.install(timers.shuffled())
    x, out = torch.randn(4096), torch.zeros(8)
    for step in range(2):
        kernels.total[(1,)](x, out, 4096)
        kernels.several_keys[(8,)](x, out, n=512, rows=8)
        pinner.fingerprint("step", float(step))


if __name__ == "__main__":
    main()
