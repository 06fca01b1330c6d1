"""Which modules of which libraries are hooked, and by what: the one list of this room.

Installed right before torch is imported. Each file of the room is loaded only when the library it
knows is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ... import imports, ledger, session

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Tuple

# Module of a library, file of this room, function that is called with the module, and what it is
# called with before that.
HOOKS: Tuple[Tuple[str, str, str, Tuple[str, ...]], ...] = (
    ("torch", "cudnn", "install", ()),
    ("torch", "sdpa", "install", ()),
    ("torch", "tunableop", "install", ()),
    ("torch.distributed.distributed_c10d", "nccl", "install", ()),
    ("flash_attn.flash_attn_interface", "flash_attention", "install", ("2",)),
    ("flash_attn_interface", "flash_attention", "install", ("3",)),
    ("flash_attn_3.flash_attn_interface", "flash_attention", "install", ("3",)),
    ("flash_attn.cute.interface", "flash_attention", "install", ("4",)),
    ("flashinfer.autotuner", "flashinfer", "install", ()),
    ("flashinfer.autotuner.autotuner", "flashinfer", "install", ()),
    ("helion.runtime.kernel", "helion", "install", ()),
    ("flag_gems", "flag_gems", "install", ()),
    ("flag_gems.utils.libentry", "flag_gems", "install_tuner", ()),
    ("cutlass.testing", "cute_dsl", "install", ()),
    ("cutlass.cute.testing", "cute_dsl", "install", ()),
    ("grouped_gemm.backend", "cutlass_grouped", "install", ()),
    ("deep_gemm", "deep_gemm", "install", ()),
    (
        "transformer_engine.pytorch.attention.dot_product_attention.utils",
        "transformer_engine",
        "install",
        (),
    ),
    ("transformer_engine.pytorch.dot_product_attention.utils", "transformer_engine", "install", ()),
    ("transformer_engine.pytorch.attention", "transformer_engine", "install", ()),
    ("xformers.ops", "xformers", "install", ()),
)

# Files whose library reads environment variables that the lock may force.
FORCING = ("nccl", "transformer_engine", "tunableop", "deep_gemm")

_installed = False


def install() -> None:
    """Hook every library, and set the locked variables before any of them reads its own."""
    global _installed
    active = session.current()
    if _installed or active is None:
        return
    _installed = True
    if active.enforcing:
        _force_variables()
    for module, file, function, given in HOOKS:
        imports.after(module, _installer(file, function, given))
    if active.evidence:  # else there is no hook on a step, and none is added
        imports.after("torch.optim.optimizer", _installer("looks", "install", ()))
    ledger.at_exit(_name_passed_by)


def _installer(file: str, function: str, given: Tuple[str, ...]) -> Callable[[ModuleType], object]:
    def call(module: ModuleType) -> None:
        getattr(_file(file), function)(*given, module)

    return call


def _file(name: str) -> Any:
    from . import __getattr__ as load

    return load(name)


def _force_variables() -> None:
    from ... import pins

    if pins.load().settings:
        for name in FORCING:
            _file(name).force(os.environ)


def _name_passed_by() -> None:
    """Name the libraries that came in past the hooks: what they chose was not seen."""
    if not ledger.is_open():
        return
    for module, file, _function, _given in HOOKS:
        if module.partition(".")[0] != "torch" and imports.passed_by(module):
            from . import settings

            text = "%s was imported past pinner, so what it chose was not seen" % module
            settings.problem("bypass", file, module, text)
