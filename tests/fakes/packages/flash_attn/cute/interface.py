"""Stands in for flash-attn 4, flash_attn/cute/interface.py: its backward pass is Python."""

# ruff: noqa: PLR0917 - as many arguments as the real one has


def _flash_attn_bwd(
    q,
    k,
    v,
    out,
    dout,
    lse,
    softmax_scale=None,
    causal=False,
    softcap=0.0,
    window_size_left=None,
    window_size_right=None,
    deterministic=False,
):
    return q


def flash_attn_func(q, k, v, causal=False, num_splits=1, deterministic=False):
    """Forward and backward at once."""
    return _flash_attn_bwd(q, k, v, 0, 0, 0, causal=causal, deterministic=deterministic)
