"""What the demo bisects: a few of numpy's computations, each fingerprinted."""

from __future__ import annotations

import numpy

import pinner

STEPS = 3

draw = numpy.random.default_rng(0)
for _ in range(STEPS):
    a = draw.standard_normal((257, 311))
    b = draw.standard_normal((311, 129))
    pinner.fingerprint("product", a @ b)
    pinner.fingerprint("singular values", numpy.linalg.svd(a)[1])
    pinner.fingerprint("arctan2", numpy.arctan2(a, a[::-1]))
    pinner.fingerprint("mean", a.astype("f4").mean())
