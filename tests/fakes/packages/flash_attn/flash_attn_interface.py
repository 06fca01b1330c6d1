"""Stands in for flash-attn 2.8.4, flash_attn/flash_attn_interface.py: what calls its kernels."""

# ruff: noqa: PLR0917 - as many arguments as the real one has

import flash_attn_2_cuda as flash_attn_gpu


def _flash_attn_backward(
    dout,
    q,
    k,
    v,
    out,
    softmax_lse,
    dq,
    dk,
    dv,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left,
    window_size_right,
    softcap,
    alibi_slopes,
    deterministic,
    rng_state=None,
):
    return flash_attn_gpu.bwd(
        *(dout, q, k, v, out, softmax_lse, dq, dk, dv, alibi_slopes),
        *(dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap),
        *(deterministic, None, rng_state),
    )


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """Forward and backward at once."""
    _flash_attn_backward(
        *(0, q, k, v, 0, 0, 0, 0, 0, dropout_p, softmax_scale, causal),
        *(*window_size, softcap, alibi_slopes, deterministic),
    )
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
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    """Forward and backward at once."""
    zero_tensors = False
    flash_attn_gpu.varlen_bwd(
        *(0, q, k, v, 0, 0, 0, 0, 0, cu_seqlens_q, cu_seqlens_k, alibi_slopes),
        *(max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, zero_tensors, causal),
        *(*window_size, softcap, deterministic, None, None),
    )
    return q


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
):
    """Forward alone: there is no backward pass, and no `deterministic`."""
    return q
