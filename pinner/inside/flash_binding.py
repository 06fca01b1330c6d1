"""Binds flash-attn's functions to `deterministic=True` under a policy profile that asks for it.

torch's switches do not reach these kernels, and the argument is one of each call. So under a
profile (or a lock recorded under one) that holds FLASH_ATTENTION_DETERMINISTIC at 1, the functions
that take `deterministic` get it where the program does not say; the rest are left alone. What the
program says is never changed: `deterministic=False` where a gradient will be asked for is told, and
is what the profile does not accept. A backend none of whose functions takes it ends the process.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from typing import TYPE_CHECKING

from . import faults, imports
from .attention import PARAMETER
from .choosers.others import registry, settings
from .choosers.others.flash_attention import CHOOSER

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Dict, Iterable, List, Mapping

VARIABLE = "FLASH_ATTENTION_DETERMINISTIC"
MODULES = [
    ("flash-attn " + given[0], module)
    for module, file, _function, given in registry.HOOKS
    if file == CHOOSER
]

_begun = False


def wanted(rules: Iterable[Mapping[str, Any]], environ: Mapping[str, str]) -> bool:
    """Whether the rules in force hold the variable at 1."""
    held = any(rule["kind"] == "variable" and rule["name"] == VARIABLE for rule in rules)
    return held and environ.get(VARIABLE) == "1"


def begin(chooser: str) -> None:
    """Bind each interface right after it was imported, before anybody took its functions.

    chooser: under which name a call with deterministic=False is told
    """
    global _begun
    if _begun:
        return
    _begun = True
    for backend, name in MODULES:
        imports.after(name, functools.partial(bind, chooser, backend))


def bind(chooser: str, backend: str, module: ModuleType) -> None:
    """Replace the functions of one interface that take it; end the process where none does."""
    own = _functions(module)
    taking = [name for name in own if PARAMETER in inspect.signature(own[name]).parameters]
    if not own:
        return  # another layout, which the chooser of flash-attn names
    if not taking:
        faults.die(
            "%s cannot be held: none of its functions takes `deterministic`: %s"
            % (backend, ", ".join(sorted(own))),
            advice="install flash-attn 2.4.1 or later, uninstall it, or take a profile of your own "
            "that accepts %s=0, and set that" % VARIABLE,
        )
    for name in taking:
        setattr(module, name, _bound(chooser, backend, own[name]))
    text = "called with deterministic=True where the program does not say"
    settings.report(CHOOSER, backend + " bound", sorted(taking), settings.RECORDED, text)


def _functions(module: Any) -> Dict[str, Callable[..., Any]]:
    """The public functions that the module itself defines."""
    return {
        name: value
        for name, value in vars(module).items()
        if name.startswith("flash_attn")
        and inspect.isfunction(value)
        and value.__module__ == module.__name__
    }


def _bound(chooser: str, backend: str, function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)
    names = list(signature.parameters)
    by_keyword = signature.parameters[PARAMETER].kind is inspect.Parameter.KEYWORD_ONLY
    place = sys.maxsize if by_keyword else names.index(PARAMETER)
    told: List[int] = []

    @functools.wraps(function)
    def bound(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= place and PARAMETER not in kwargs:
            return function(*args, deterministic=True, **kwargs)
        said = args[place] if len(args) > place else kwargs[PARAMETER]
        if not said and _differentiates() and told != [os.getpid()]:
            told[:] = [os.getpid()]
            _tell(chooser, backend, function.__name__)
        return function(*args, **kwargs)

    changed = signature.parameters[PARAMETER].replace(default=True)
    bound.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[changed if each == PARAMETER else signature.parameters[each] for each in names]
    )
    return bound


def _differentiates() -> bool:
    """Whether a backward pass may follow. Code that a compiler traces is left to the chooser of
    flash-attn, which sees the backward pass itself."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return True
    compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)  # torch 2.1
    return bool(torch.is_grad_enabled()) and not (compiling is not None and compiling())


def _tell(chooser: str, backend: str, name: str) -> None:
    text = (
        "the program itself called it with deterministic=False: the backward pass of %s adds in "
        "any order; take that out of the program, or accept %s=0 in a profile of your own"
    )
    settings.problem("invalid", chooser, name, text % (backend, VARIABLE))
