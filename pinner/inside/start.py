"""Begin a session in this process: everything that is set up before the user's code runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import imports, ledger, session

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Mapping

_begun = False


def begin(environ: Mapping[str, str]) -> None:
    """Activate the session that `environ` names, if any, and hook the modules it concerns.

    Raises StartFault where the session cannot be used. Imports neither torch nor triton.
    """
    global _begun
    if _begun:
        return
    active = session.activate(environ)
    if active is None:
        return
    _begun = True
    imports.install()
    ledger.prepare()
    ledger.at_first_line(_facts_at_first_line)
    imports.before("torch", _before_torch)
    imports.after("torch", _after_torch)
    imports.after("triton.runtime.autotuner", _install_triton)
    if active.evidence:
        imports.after("torch.optim.optimizer", _install_optimizer)
    if active.taps:
        from .evidence import taps

        taps.install(active.taps)


def _before_torch() -> None:
    from . import facts

    ledger.open_now()
    facts.before_torch()


def _after_torch(module: ModuleType) -> None:
    from . import facts

    facts.after_torch()


def _facts_at_first_line() -> None:
    from . import facts

    facts.report()


def _install_triton(module: ModuleType) -> None:
    from .choosers import triton

    triton.install(module)


def _install_optimizer(module: ModuleType) -> None:
    from .evidence import optimizer

    optimizer.install(module)
