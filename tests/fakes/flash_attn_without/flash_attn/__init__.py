"""Stands in for flash-attn 2.3.6: the package passes on what its interface file defines."""

from flash_attn.flash_attn_interface import flash_attn_func, flash_attn_varlen_func

__version__ = "2.3.6"
__all__ = ["flash_attn_func", "flash_attn_varlen_func"]
