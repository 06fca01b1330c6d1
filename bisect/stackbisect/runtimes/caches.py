"""Compile caches that must be new and empty in every probe: a stale one hides the flip.

A cache that the neighbour candidate filled answers with the neighbour's machine code, and both get
the same bits (triton-lang/triton#11513). Download caches are left alone: they hold inputs.
"""

from __future__ import annotations

# variable → folder below the probe's own scratch folder
FOLDERS = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
    "NUMBA_CACHE_DIR": "numba",
    "CUPY_CACHE_DIR": "cupy",
}

# These switch a cache on, so they are moved only where the caller has set them.
FOLDERS_IF_SET = {
    "JAX_COMPILATION_CACHE_DIR": "jax",
}
