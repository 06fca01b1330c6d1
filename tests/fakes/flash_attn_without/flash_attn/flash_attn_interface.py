"""Stands in for flash-attn 2.3.6, whose functions take no `deterministic` (it came with 2.4.1)."""

# ruff: noqa: PLR0917 - as many arguments as the real one has


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    return_attn_probs=False,
):
    """Forward and backward at once."""
    return q


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    return_attn_probs=False,
):
    """Forward and backward at once."""
    return q
