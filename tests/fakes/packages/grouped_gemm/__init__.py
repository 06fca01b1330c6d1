"""Stands in for fanshiqing/grouped_gemm 1.1.4.post8."""

from grouped_gemm import backend, ops

__version__ = "1.1.4.post8"
__all__ = ["backend", "ops"]
