"""Stands in for DeepGEMM 2.6.1, deep_gemm/__init__.py: compiled functions, passed on."""

from ._C import bf16_gemm_nt, fp8_gemm_nt, get_num_sms, get_pdl, get_tc_util, set_num_sms

__version__ = "2.6.1"
__all__ = [
    "bf16_gemm_nt",
    "fp8_gemm_nt",
    "get_num_sms",
    "get_pdl",
    "get_tc_util",
    "set_num_sms",
]
