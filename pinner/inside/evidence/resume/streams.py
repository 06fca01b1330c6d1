"""The random streams of this process: Python's, NumPy's, torch's on the CPU and each device."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from . import nested

if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, Tuple

_DEVICES = ("cuda", "xpu", "mtia")
_MEGATRON = "megatron.core.tensor_parallel.random"


def digests() -> Dict[str, str]:
    """Return {name of a stream: digest of its state}.

    Only what is loaded, and of devices only those in use, is read: asking would start them.
    """
    return {name: nested.of(state) for name, state in _states()}


def _states() -> Iterator[Tuple[str, Any]]:
    random = sys.modules.get("random")
    if random is not None:
        yield "Python's random state", repr(random.getstate()).encode("ascii")
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        yield "NumPy's random state", list(numpy.get_state())
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "default_generator"):  # it is being imported
        return
    yield "torch's random state on the CPU", torch.default_generator.get_state()
    for device in _DEVICES:
        yield from _of_device(torch, device)
    yield from _of_megatron()


def _of_device(torch: Any, name: str) -> Iterator[Tuple[str, Any]]:
    module = sys.modules.get("torch." + name)
    started = getattr(module, "is_initialized", None)
    if module is None or started is None or not started():
        return
    if name == "cuda" and torch.cuda.is_current_stream_capturing():
        return
    for index, generator in enumerate(getattr(module, "default_generators", ())):
        yield "torch's random state on %s:%d" % (name, index), generator.get_state()


def _of_megatron() -> Iterator[Tuple[str, Any]]:
    """Megatron forks the device's stream by name: see CudaRNGStatesTracker (megatron-core 0.16)."""
    tracker = getattr(sys.modules.get(_MEGATRON), "_CUDA_RNG_STATE_TRACKER", None)
    states = getattr(tracker, "states_", None)
    for name, state in sorted((states or {}).items()):
        value = nested.generator_state(state) if nested.is_generator(state) else state
        yield "Megatron's random state %r" % name, value
