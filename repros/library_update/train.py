"""Fits a matrix by gradient descent in float64; numpy is all that computes."""

from __future__ import annotations

import numpy

import pinner

ROWS, INNER, COLUMNS = 257, 311, 129
STEPS = 3

draw = numpy.random.RandomState(0)
x = draw.random_sample((ROWS, INNER)) - 0.5
wanted = draw.random_sample((ROWS, COLUMNS)) - 0.5
weight = draw.random_sample((INNER, COLUMNS)) - 0.5

for _ in range(STEPS):
    error = x @ weight - wanted
    gradient = x.T @ error / ROWS
    weight -= 0.1 * gradient
    pinner.fingerprint("product", error)
    pinner.fingerprint("weight", weight)
