"""Stands in for the compiled half of fanshiqing/grouped_gemm 1.1.4.post8."""

# ruff: noqa: PLR0917 - as many arguments as the real one has


def gmm(a, b, c, batch_sizes, trans_a, trans_b):
    return None
