"""Stands in for the compiled half of DeepGEMM 2.6.1."""

_state = {"num_sms": 132}


def set_num_sms(number):
    _state["num_sms"] = number


def get_num_sms():
    return _state["num_sms"]


def get_tc_util():
    return 100


def get_pdl():
    return False


def fp8_gemm_nt(a, b, d, c=None):
    return d


def bf16_gemm_nt(a, b, d, c=None):
    return d
