"""Stands in for fanshiqing/grouped_gemm 1.1.4.post8."""

import grouped_gemm.backend
import grouped_gemm.ops

__version__ = "1.1.4.post8"
