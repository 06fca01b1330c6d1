"""The software and hardware facts of this process, and whether they are the locked ones.

Facts are flat: a name, and a string or number. Which of them can change bits is decided by
`stack_rules`. A fact that cannot be known here is left out; no value ever means "unknown".

- `torch`, `triton`, `flash-attn`, …: version of an installed distribution, from its metadata.
- `env:NAME`, `cpu:env:NAME`: a switch of the environment; the latter matters on a CPU only.
- `ptxas`: only where a variable puts another ptxas in the place of Triton's own, whose version
  follows from Triton's.
- `loaded:…`: torch's build, and the versions that the libraries torch links report themselves.
  There from the moment torch was imported, whatever the program does afterwards.
- `gpu`, `gpu:…`, `driver`: the devices this process may use, from NVML, which starts nothing.
- `cpu`, `cpu:…`, `glibc`, `python`, `os`: the machine's.

Each is read at a fixed point and kept, so that a program that never touches a GPU and one that
does have the same facts (pytorch/pytorch#132464).

Nothing here calls into torch, BLAS or CUDA: MKL and ATen read their switches at the first call,
and a first call made by us would come before the program has set them.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from . import faults, ledger, loaded, nvml, pins, session, stack_rules

if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Tuple, Union

    Facts = Dict[str, Union[str, int]]

DISTRIBUTIONS = (
    "torch",
    "triton",
    "pytorch-triton",
    "apex",
    "bitsandbytes",
    "causal-conv1d",
    "cuequivariance-ops-torch-cu12",
    "cuequivariance-ops-torch-cu13",
    "deep-ep",
    "deep-gemm",
    "fla-core",
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
    "flash-linear-attention",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "flashinfer-python",
    "grouped-gemm",
    "helion",
    "kernels",
    "liger-kernel",
    "mamba-ssm",
    "natten",
    "nvidia-cudnn-frontend",
    "nvidia-cutlass-dsl",
    "quack-kernels",
    "sageattention",
    "sgl-kernel",
    "tilelang",
    "torchao",
    "transformer-engine",
    "transformer-engine-cu12",
    "transformer-engine-cu13",
    "transformer-engine-torch",
    "unsloth",
    "vllm",
    "xformers",
    *stack_rules.CPU_DISTRIBUTIONS,
)
"""PyTorch, Triton, and distributions that bring kernels or arithmetic of their own."""

SWITCHES = (
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDNN_CONV_WSCAP_DBG",
    "DISABLE_ADDMM_CUDA_LT",
    "DISABLE_LLVM_OPT",
    "DISABLE_PTXAS_OPT",
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_MAX_CTAS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NTHREADS",
    "NCCL_NVLS_ENABLE",
    "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
    "NVTE_FLASH_ATTN",
    "NVTE_FUSED_ATTN",
    "NVTE_UNFUSED_ATTN",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_F32_DEFAULT",
    "TRITON_INTERPRET",
    "TRITON_OVERRIDE_ARCH",
)
"""Variables that change which kernel runs on a GPU, or its arithmetic."""

CPU_SWITCHES = (
    "ATEN_CPU_CAPABILITY",
    "BLIS_NUM_THREADS",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "GLIBC_TUNABLES",
    "GOTO_NUM_THREADS",
    "KMP_DETERMINISTIC_REDUCTION",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NPY_DISABLE_CPU_FEATURES",
    "NPY_ENABLE_CPU_FEATURES",
    "OMP_DYNAMIC",
    "OMP_NUM_THREADS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
)
"""Variables that change arithmetic on a CPU, or into how many parts a sum is split."""

PTXAS_VARIABLES = {"TRITON_PTXAS_PATH": "ptxas", "TRITON_PTXAS_BLACKWELL_PATH": "ptxas:blackwell"}

_kept: Dict[str, Facts] = {}
_torch_imported = False
_reported: Optional[Tuple[int, bool]] = None


def collect() -> Facts:
    """Return the facts of this process: {name: value}.

    Each is read once and kept. Those of torch are there once `after_torch` was called.
    """
    found = dict(_once("everywhere", _everywhere))
    if _torch_imported:
        found.update(_once("torch", _of_torch))
    return found


def before_torch() -> None:
    """End the process if a locked fact that can be known before torch runs differs here."""
    _refuse_differences()


def after_torch() -> None:
    """Report again, now with what torch brought along."""
    global _torch_imported
    _torch_imported = True
    report()


def report() -> None:
    """Write this process's facts to its ledger, once, and check them.

    Ends the process where a locked hard fact differs.
    """
    global _reported
    state = (os.getpid(), _torch_imported)
    if _reported == state or session.current() is None:
        return
    _reported = state
    ledger.write({"t": "facts", "facts": collect()})
    _refuse_differences()


def _refuse_differences() -> None:
    active = session.current()
    if active is None or not active.enforcing:
        return
    locked = pins.load().stack_hard
    if not locked:
        return
    found = stack_rules.hard_mismatches(locked, collect(), active.allow)
    if found and _tells_the_others(found):
        return
    if found:
        faults.die(
            "the stack here is not the locked one, %d hard %s:"
            % (len(found), "fact differs" if len(found) == 1 else "facts differ"),
            table=[("field", "locked", "here")] + [each.row() for each in found],
            advice="install what was locked, allow a field with --allow FIELD, or record again",
        )


def _tells_the_others(found: List[stack_rules.Mismatch]) -> bool:
    """Whether the ranks compare their facts later (see agree.py), so that all end alike."""
    from . import agree

    rows = "; ".join(str(each) for each in found)
    return agree.keep("the stack here is not the locked one: %s" % rows)


def _once(name: str, read: Callable[[], Facts]) -> Facts:
    if name not in _kept:
        _kept[name] = read()
    return _kept[name]


def _everywhere() -> Facts:
    found: Facts = {}
    found.update(_distributions())
    found.update(_switches())
    found.update(_ptxas())
    found.update(devices())
    found.update(_machine())
    return found


def devices() -> Facts:
    """Return what NVML says of the devices that this process may use; asked once."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return _once("devices %s" % (visible,), lambda: nvml.facts(visible))


def _distributions() -> Facts:
    from importlib.metadata import PackageNotFoundError, version

    found: Facts = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _switches() -> Facts:
    found: Facts = {"env:" + name: os.environ[name] for name in SWITCHES if name in os.environ}
    for name in CPU_SWITCHES:
        if name in os.environ:
            found["cpu:env:" + name] = os.environ[name]
    return found


def _ptxas() -> Facts:
    """Return the versions of the ptxas programs that stand in for Triton's own."""
    found: Facts = {}
    for variable, name in PTXAS_VARIABLES.items():
        version = _version_of(os.environ.get(variable))
        if version is not None:
            found[name] = version
    return found


def _version_of(program: Optional[str]) -> Optional[str]:
    if not program:
        return None
    import subprocess

    try:
        done = subprocess.run(
            [program, "--version"], stdout=subprocess.PIPE, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    words = done.stdout.decode("utf-8", "replace").split()
    versions = [word for word in words if word[:1] == "V" and word[1:2].isdigit()]
    return versions[-1] if versions else " ".join(words[-6:])


def _machine() -> Facts:
    found: Facts = {
        "python": "%d.%d.%d" % sys.version_info[:3],
        "os": "%s %s" % (os.uname().sysname, os.uname().machine),
        "kernel": os.uname().release,
        "cpu:threads": _threads(),
    }
    libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    if libc:
        found["glibc"] = libc
    found.update(cpu_facts(_first_processor()))
    return found


def _threads() -> int:
    """Return how many threads OpenMP starts here where the program does not say."""
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if given.isdigit() and int(given) > 0:
        return int(given)
    return len(os.sched_getaffinity(0))


def _first_processor() -> Dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo."""
    fields: Dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as source:
            for line in source:
                if not line.strip():
                    break
                name, _, value = line.partition(":")
                fields[name.strip()] = value.strip()
    except OSError:
        return {}
    return fields


def cpu_facts(processor: Dict[str, str]) -> Facts:
    """Return the model, and the instruction sets as a digest. Pure.

    processor: the fields of one processor in /proc/cpuinfo, of x86 or Arm

    Of the flags only the instruction sets count: a new kernel or microcode adds flags about
    security that no arithmetic depends on.
    """
    import hashlib

    found: Facts = {}
    model = processor.get("model name")
    if model is None and "CPU part" in processor:
        model = "%s/%s" % (processor.get("CPU implementer", "?"), processor["CPU part"])
    if model:
        found["cpu"] = model
    flags = [flag for flag in processor.get("flags", "").split() if _is_arithmetic(flag)]
    flags += processor.get("Features", "").split()
    if flags:
        text = " ".join(sorted(set(flags)))
        found["cpu:isa"] = hashlib.sha256(text.encode("ascii", "replace")).hexdigest()[:16]
    return found


def _is_arithmetic(flag: str) -> bool:
    starts = ("sse", "ssse", "avx", "fma", "f16c", "bmi", "amx", "abm", "popcnt", "pni")
    return flag.startswith(starts)


def _of_torch() -> Facts:
    found: Facts = {}
    version = sys.modules.get("torch.version")
    for field, name in (("__version__", "torch"), ("git_version", "torch:git")):
        _add(found, "loaded:" + name, getattr(version, field, None))
    for name in ("cuda", "hip", "xpu"):
        _add(found, "loaded:torch:" + name, getattr(version, name, None))
    found.update(loaded.versions())
    return found


def _add(found: Facts, name: str, value: object) -> None:
    if value is not None:
        found[name] = str(value)
