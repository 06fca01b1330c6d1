"""Puts the hooks of a trace in place, each when its module is imported, as deep as was asked."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING

from ... import imports, ledger
from ...faults import StartFault
from .hashing import Hashing
from .log import Log
from .settings import Settings

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Optional

    from .arrays import Arrays
    from .recorder import Recorder

_recorder: Optional[Recorder] = None
_arrays: Optional[Arrays] = None  # of a process without torch


def begin(fields: Dict[str, Any]) -> None:
    """Trace this process from the import of torch on. fields: the `trace` of the session.

    A process without torch is traced from the import of numpy on. Raises StartFault for a level
    that does not exist.
    """
    settings = Settings(fields)
    imports.after("torch", functools.partial(_install, settings))
    imports.before("torch", _withdraw_arrays)
    imports.after("numpy", functools.partial(_install_arrays, settings))
    os.register_at_fork(after_in_child=_after_fork)


def recorder() -> Optional[Recorder]:
    """The recorder of this process; None where nothing is traced, or torch is not imported."""
    return _recorder


def _install(settings: Settings, torch: ModuleType) -> None:
    global _recorder
    if _recorder is not None:  # torch was executed again: its functions are new, the log is not
        return
    from .recorder import Recorder
    from .steps import Steps

    log = Log(settings.folder)
    hashing = Hashing(settings.defer)
    log.settle = hashing.settle if settings.defer else None
    _recorder = Recorder(torch, settings, log, hashing)
    log.head = _recorder.head
    if settings.capture is not None:
        _await(_recorder, settings.capture)
    ledger.at_exit(log.close)
    steps = Steps(_recorder)
    ledger.follow(steps.follow)
    imports.after("torch.optim.optimizer", steps.install)
    _install_collectives(_recorder)
    if settings.at_least("modules"):
        from . import modules

        modules.install(_recorder, torch.nn.Module)
    if settings.at_least("ops"):
        from . import ops

        ops.install(_recorder)
    _install_compiled(_recorder, settings.at_least("kernels"))


def _install_arrays(settings: Settings, numpy: ModuleType) -> None:
    """numpy is traced as long as torch does not come: then what is computed is torch's."""
    global _arrays
    if _arrays is not None or _recorder is not None or "torch" in sys.modules:
        return
    from .arrays import ArrayRecorder, Arrays
    from .steps import Steps

    log = Log(settings.folder)
    recorder = ArrayRecorder(None, settings, log, Hashing(False))
    log.head = recorder.head
    if settings.capture is not None:
        _await(recorder, settings.capture)
    ledger.at_exit(log.close)
    ledger.follow(Steps(recorder).follow)
    _arrays = Arrays(recorder, numpy)
    if settings.at_least("ops"):
        _arrays.install()


def _withdraw_arrays() -> None:
    """torch is about to be imported: the recorder that it gets begins anew."""
    if _arrays is not None:
        _arrays.withdraw()
        _arrays.recorder.end()


def _await(recorder: Recorder, fields: Dict[str, Any]) -> None:
    from ... import session
    from .capture import Awaited

    asked = session.current()
    if asked is None:
        raise StartFault("trace: a call is captured in a session, found none")
    recorder.awaited = Awaited(fields, asked.folder)


def _install_collectives(recorder: Recorder) -> None:
    from . import collectives, recompute

    after = imports.after
    after("torch.distributed.distributed_c10d", functools.partial(collectives.install, recorder))
    after(
        "torch.distributed._functional_collectives",
        functools.partial(collectives.install_functional, recorder),
    )
    after("torch.utils.checkpoint", functools.partial(recompute.install, recorder))


def _install_compiled(recorder: Recorder, deep: bool) -> None:
    from . import compiled, kernels

    after = imports.after
    if recorder.settings.at_least("modules"):
        for name in ("torch._inductor.output_code", "torch._inductor.codecache"):
            after(name, functools.partial(compiled.install, recorder))
    if not deep:
        return
    from ...choosers.cublaslt import calls

    recorder.calls = calls.follow()
    after("torch._inductor.async_compile", functools.partial(compiled.install_kernels, recorder))
    after(
        "torch._inductor.runtime.triton_heuristics",
        functools.partial(compiled.install_launcher, recorder),
    )
    after("triton.runtime.jit", functools.partial(kernels.install, recorder))
    after("triton.runtime.interpreter", functools.partial(kernels.install_interpreter, recorder))
    after("triton.runtime.autotuner", functools.partial(kernels.install_autotuner, recorder))


def _after_fork() -> None:
    if _arrays is not None:
        _arrays.recorder.after_fork()
    if _recorder is not None:
        from . import collectives

        _recorder.after_fork()
        collectives.forget()
