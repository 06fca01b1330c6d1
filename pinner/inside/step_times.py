"""When steps ended, for `pinner tax`: marks of optimizer steps and fingerprints, kept in memory.

Without PINNER_STEP_TIMES (a folder) nothing here is imported. The file of a process is written at
its end; one that is killed leaves none. Where CUDA has started, each mark waits for the device, so
that a step's time is the work's and not that of launching it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

from . import api, imports, ledger, policy_switches

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Dict, List, Optional

VARIABLE = "PINNER_STEP_TIMES"
OPTIMIZER = "optimizer"
# Variables that can make a run slower or faster.
PREFIXES = (
    *("CUBLAS", "CUDA_", "CUDNN", "FLASH_ATTENTION_", "MKL_", "NCCL_", "NVIDIA_", "NVTE_", "OMP_"),
    *("PYTORCH_", "TORCH", "TRITON_", "VLLM_", "XLA_"),
)


class Marks:
    """The marks of one process. clock: nanoseconds; wait: returns when the device has caught up."""

    def __init__(self, clock: Callable[[], int], wait: Callable[[], None]) -> None:
        self.times: Dict[str, List[int]] = {}
        self.first: Dict[str, str] = {}
        self.switches: Dict[str, Any] = {}
        self._clock = clock
        self._wait = wait
        self._optimizer: Optional[int] = None

    def add(self, name: str) -> None:
        """A step of `name` has ended."""
        self._wait()
        self.times.setdefault(name, []).append(self._clock())

    def fingerprinted(self, name: str, value: Any) -> None:
        """A value was fingerprinted; of the first of a stream the digest is kept, too."""
        stream = "stream " + name
        if stream not in self.times:
            self.first[name] = _digest(value)
        self.add(stream)

    def stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """An optimizer has stepped; where there are several, the first of all counts."""
        if self._optimizer is None:
            self._optimizer = id(optimizer)
            self.switches = _switches()
        if self._optimizer == id(optimizer):
            self.add(OPTIMIZER)


_marks: Optional[Marks] = None


def begin(folder: str) -> None:
    """Mark the steps of this process from here on."""
    global _marks
    marks = _marks = Marks(time.perf_counter_ns, _device)

    def stepped(*args: Any) -> None:
        if _marks is not None:
            _marks.stepped(*args)

    stepped._torchdynamo_disable = True  # type: ignore[attr-defined]

    def install(module: ModuleType) -> None:
        module.register_optimizer_step_post_hook(stepped)

    imports.after("torch.optim.optimizer", install)
    api.on_fingerprint = marks.fingerprinted
    os.register_at_fork(after_in_child=_forget)
    ledger.at_exit(lambda: _write(folder))


def _forget() -> None:
    """What a forked child does is no step of its parent."""
    global _marks
    _marks = None
    api.on_fingerprint = None


def _write(folder: str) -> None:
    if _marks is None or not _marks.times:
        return
    body = {
        "rank": ledger.layout()["rank"] or 0,
        "times": _marks.times,
        "first": _marks.first,
        "switches": _marks.switches or _switches(),
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(PREFIXES)},
    }
    path = os.path.join(folder, "%s-%d.json" % (os.uname().nodename, os.getpid()))
    with open(path + ".new", "w") as file:
        json.dump(body, file)
    os.rename(path + ".new", path)


def _switches() -> Dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found = {name: switch.read(torch) for name, switch in policy_switches.SWITCHES.items()}
    return {name: value for name, value in found.items() if value is not None}


def _device() -> None:
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized() and not cuda.is_current_stream_capturing():
        cuda.synchronize()


def _digest(value: Any) -> str:
    from . import faults
    from .evidence.digest import digest

    try:
        return digest(value)[0]
    except faults.EvidenceError:
        return ""
