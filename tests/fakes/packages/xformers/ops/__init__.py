"""Stands in for xformers 0.0.35, xformers/ops/__init__.py."""

# ruff: noqa: PLR0917 - as many arguments as the real one has


def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None):
    return query


def sparsify24(x):
    return x
