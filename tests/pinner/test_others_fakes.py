"""Holds the stand-in packages to the real ones' sources: names, parameters and their order.

Runs where LIBRARY_SOURCES names a folder with checkouts of the libraries, by repository name
(flash-attention, flashinfer, helion, FlagGems, DeepGEMM, TransformerEngine, cutlass, xformers,
grouped_gemm). Nothing of them is imported: they need CUDA.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from tests.others_rig import PACKAGES

# Stand-in, repository, file there, and what of it the choosers rely on.
HELD = [
    (
        "flash_attn/flash_attn_interface.py",
        "flash-attention",
        "flash_attn/flash_attn_interface.py",
        (
            "_flash_attn_backward",
            "flash_attn_func",
            "flash_attn_varlen_func",
            "flash_attn_with_kvcache",
        ),
    ),
    (
        "flashinfer/autotuner/autotuner.py",
        "flashinfer",
        "flashinfer/autotuner/autotuner.py",
        (
            "AutoTuner.__init__",
            "AutoTuner.get",
            "AutoTuner.search_cache",
            "AutoTuner.choose_one",
            "AutoTuner.save_configs",
            "AutoTuner.load_configs",
            "ProfilingCacheKey.file_key",
            "autotune",
            "_tactic_to_json",
            "_json_to_tactic",
        ),
    ),
    (
        "helion/runtime/kernel.py",
        "helion",
        "helion/runtime/kernel.py",
        (
            "BoundKernel.autotune",
            "Kernel.autotune",
            "Kernel.specialization_key",
            "BoundKernel.ensure_config_exists",
        ),
    ),
    (
        "flag_gems/utils/libentry.py",
        "FlagGems",
        "src/flag_gems/utils/libentry.py",
        ("ConfigCache.__init__", "ConfigCache.set", "ConfigCache.get", "ConfigCache.__setitem__"),
    ),
    ("flag_gems/__init__.py", "FlagGems", "src/flag_gems/__init__.py", ("enable",)),
    ("cutlass/testing.py", "cutlass", "python/CuTeDSL/cutlass/testing.py", ("tune",)),
    (
        "cutlass/cute/testing.py",
        "cutlass",
        "python/CuTeDSL/cutlass/cute/testing.py",
        ("autotune_jit._create_tuning_wrapper",),
    ),
    ("grouped_gemm/backend.py", "grouped_gemm", "grouped_gemm/backend.py", ("gmm",)),
    (
        "transformer_engine/pytorch/attention/dot_product_attention/utils/__init__.py",
        "TransformerEngine",
        "transformer_engine/pytorch/attention/dot_product_attention/utils.py",
        ("get_attention_backend",),
    ),
]
# Written by name in the real file, and read by that name in a chooser.
NAMED = [
    ("flash-attention", "flash_attn/flash_attn_interface.py", "flash_attn_gpu.bwd("),
    ("flash-attention", "flash_attn/flash_attn_interface.py", "flash_attn_gpu.varlen_bwd("),
    ("flash-attention", "hopper/flash_attn_interface.py", "flash_attn_3_gpu.bwd("),
    ("flash-attention", "flash_attn/cute/interface.py", "_flash_attn_bwd("),
    ("flashinfer", "flashinfer/autotuner/autotuner.py", "self._file_configs[key] ="),
    ("flashinfer", "flashinfer/autotuner/autotuner.py", "self._logged_file_hits.add(log_key)"),
    ("flashinfer", "flashinfer/autotuner/autotuner.py", "def _profile_single_kernel("),
    ("helion", "helion/runtime/kernel.py", "def set_config("),
    ("helion", "helion/runtime/config.py", "def from_json("),
    ("helion", "helion/runtime/kernel.py", "def autotune_multi("),
    ("FlagGems", "src/flag_gems/utils/libentry.py", "self.dict_cache.get(key)"),
    ("FlagGems", "src/flag_gems/utils/libentry.py", "self.dict_cache[key] = ret"),
    ("cutlass", "python/CuTeDSL/cutlass/cute/testing.py", "func._best_config[tuning_key] ="),
    ("grouped_gemm", "grouped_gemm/backend.py", "import grouped_gemm_backend as backend"),
    ("DeepGEMM", "deep_gemm/__init__.py", "get_num_sms,"),
    ("DeepGEMM", "csrc/jit/compiler.hpp", '"DG_JIT_USE_NVRTC"'),
    ("xformers", "xformers/ops/__init__.py", "memory_efficient_attention,"),
    ("xformers", "xformers/ops/sp24.py", '"XFORMERS_CUSPARSELT_TUNE"'),
]


def _source(repository: str, file: str) -> str:
    folder = os.environ.get("LIBRARY_SOURCES")
    if not folder or not (Path(folder) / repository).is_dir():
        pytest.skip("needs the sources of the libraries in $LIBRARY_SOURCES")
    return (Path(folder) / repository / file).read_text()


def _parameters(text: str, name: str) -> list[tuple[str, str]]:
    """Name and default of each parameter, of a function or of a method as `Class.method`."""
    body = ast.parse(text).body
    *owners, last = name.split(".")
    for owner in owners:
        (kind,) = [e for e in body if isinstance(e, ast.ClassDef) and e.name == owner]
        body = kind.body
    found = [e for e in body if isinstance(e, ast.FunctionDef) and e.name == last]
    arguments = found[-1].args
    every = [*arguments.posonlyargs, *arguments.args]
    defaults = [""] * (len(every) - len(arguments.defaults)) + list(
        map(ast.unparse, arguments.defaults)
    )
    named = zip(every, defaults, strict=True)
    keywords = zip(arguments.kwonlyargs, map(_text, arguments.kw_defaults), strict=True)
    return [(each.arg, default) for each, default in [*named, *keywords]]


def _text(default: ast.expr | None) -> str:
    return "" if default is None else ast.unparse(default)


@pytest.mark.parametrize(
    ("stand_in", "repository", "file", "name"),
    [(stand_in, where, file, name) for stand_in, where, file, names in HELD for name in names],
)
def test_a_stand_in_has_the_parameters_of_the_real_one(
    stand_in: str, repository: str, file: str, name: str
) -> None:
    real = _parameters(_source(repository, file), name)
    assert _parameters((PACKAGES / stand_in).read_text(), name) == real


@pytest.mark.parametrize(("repository", "file", "text"), NAMED)
def test_what_a_chooser_relies_on_is_there(repository: str, file: str, text: str) -> None:
    assert text in _source(repository, file)
