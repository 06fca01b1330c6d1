"""Stands in for flash-attn 4, flash_attn/cute."""

from .interface import flash_attn_func

__all__ = ["flash_attn_func"]
