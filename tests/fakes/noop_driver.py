"""A Triton device driver that launches nothing: the whole compile path, to real sm_90 cubins.

`install()` makes `Autotuner.run` prune, benchmark (with a benchmark of the test's own), compile
with the ptxas of the wheel and "launch" on a machine without a GPU. Triton 3.4 to 3.9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver as triton_driver

Benchmark = Callable[..., list[float]]


class NoopUtils:
    """The parts of `CudaUtils` that compiling and launching ask for."""

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[Any, ...]:
        """(module, function, registers, spills, most threads) of a binary that is never loaded."""
        return (0, 0, 32, 0, 1024)

    def unload_module(self, module: Any) -> None:
        """Nothing was loaded."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        """The figures of an H100 that Triton reads."""
        return {
            "max_shared_mem": 232448,
            "max_num_regs": 65536,
            "multiprocessor_count": 132,
            "warpSize": 32,
            "sm_clock_rate": 1980000,
            "mem_clock_rate": 2619000,
            "mem_bus_width": 5120,
        }


class NoopLauncher:
    """A launcher that counts instead of launching."""

    launches = 0

    def __init__(self, src: Any, metadata: Any) -> None:
        self.src = src

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        NoopLauncher.launches += 1


class NoopDriver:
    """The parts of `CudaDriver` that `Autotuner.run` and `JITFunction.run` ask for."""

    launcher_cls = NoopLauncher

    def __init__(self, benchmark: Benchmark, arch: int = 90) -> None:
        self.utils = NoopUtils()
        self._benchmark = benchmark
        self._arch = arch

    def get_current_target(self) -> GPUTarget:
        """An NVIDIA target of the given architecture."""
        return GPUTarget("cuda", self._arch, 32)

    def get_current_device(self) -> int:
        """Device 0."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """The default stream."""
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """The architecture as (major, minor)."""
        return divmod(self._arch, 10)

    def get_active_torch_device(self) -> Any:
        """Tensors stay on the host."""
        import torch

        return torch.device("cpu")

    def get_benchmarker(self) -> Benchmark:
        """The test's own benchmark."""
        return self._benchmark

    @staticmethod
    def is_active() -> bool:
        """This driver is set by hand only."""
        return True


def install(benchmark: Benchmark, arch: int = 90) -> NoopDriver:
    """Make a `NoopDriver` Triton's active driver."""
    noop = NoopDriver(benchmark, arch)
    triton_driver.set_active(noop)
    return noop
