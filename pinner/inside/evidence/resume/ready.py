"""Ready hooks: optimizer steps, torch.save and torch.load, torch.distributed.checkpoint.

Installed only where `pinner verify --resume` asks for it, by the variable PINNER_VERIFY_RESUME
("whole 1", "killed 1", "restored 1": the role of this run and the number of the checkpoint).
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import TYPE_CHECKING

from ... import imports, ledger
from ...faults import StartFault
from . import loaders, moments, registry

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Mapping, Optional

VARIABLE = "PINNER_VERIFY_RESUME"

_moments: Optional[moments.Moments] = None
_inside = threading.local()


def active() -> Optional[moments.Moments]:
    """Return what this process notes, or None where nobody asked."""
    return _moments


def begin(environ: Mapping[str, str]) -> None:
    """Hook what is saved, restored and stepped, if `environ` asks for it. Raises StartFault."""
    global _moments
    text = environ.get(VARIABLE)
    if not text or _moments is not None:
        return
    role, _, number = text.partition(" ")
    if role not in moments.ROLES or not number.isdigit():
        raise StartFault('%s must be "ROLE NUMBER", found %r' % (VARIABLE, text))
    _moments = moments.Moments(role, int(number))
    imports.after("torch.nn.modules.module", registry.meet_modules)
    imports.after("torch.optim.optimizer", _hook_optimizer)
    imports.after("torch.optim.lr_scheduler", _hook_schedules)
    imports.after("torch.amp.grad_scaler", _hook_scalers)
    imports.after("torch.utils.data.dataloader", loaders.watch)
    imports.after("torchdata.stateful_dataloader.stateful_dataloader", _hook_stateful)
    imports.after("torch.serialization", _hook_files)
    imports.after("torch.distributed.checkpoint.state_dict_saver", _hook_saver)
    imports.after("torch.distributed.checkpoint.state_dict_loader", _hook_loader)
    imports.after("torch.distributed.checkpoint.state_dict", _hook_making_room)
    ledger.at_exit(_end)
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """A forked child saves nothing of its own: loader workers, and savers in the background."""
    global _moments
    _moments = None


def _end() -> None:
    if _moments is not None and ledger.is_open():
        _moments.end()


def _hook_optimizer(module: ModuleType) -> None:
    registry.meet_new(module.Optimizer, registry.optimizers)
    module.register_optimizer_step_pre_hook(_before_step)
    module.register_optimizer_step_post_hook(_after_step)


def _before_step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if _moments is not None and not getattr(_inside, "room", False):
        _moments.step_begins()


def _after_step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if _moments is not None and not getattr(_inside, "room", False):
        _moments.step_ends()


# A compiled training step must not be traced into our code.
_before_step._torchdynamo_disable = True  # type: ignore[attr-defined]
_after_step._torchdynamo_disable = True  # type: ignore[attr-defined]


def _hook_schedules(module: ModuleType) -> None:
    base = getattr(module, "LRScheduler", None) or module._LRScheduler  # torch 1.x
    registry.meet_new(base, registry.schedules)


def _hook_scalers(module: ModuleType) -> None:
    registry.meet_new(module.GradScaler, registry.scalers)


def _hook_stateful(module: ModuleType) -> None:
    loaders.watch_class(module.StatefulDataLoader)


def _hook_files(module: ModuleType) -> None:
    """Wrap torch.save and torch.load, before torch takes their names from here."""
    torch = sys.modules.get("torch")
    for name, after in (("save", _saved), ("load", _loaded)):
        plain = getattr(module, name)
        wrapped = _afterwards(plain, after)
        setattr(module, name, wrapped)
        if torch is not None and vars(torch).get(name) is plain:
            setattr(torch, name, wrapped)


def _hook_saver(module: ModuleType) -> None:
    module.save = _afterwards(module.save, _saved_distributed)  # type: ignore[attr-defined]
    if hasattr(module, "async_save"):
        module.async_save = _afterwards(module.async_save, _saving_distributed)  # type: ignore[attr-defined]


def _hook_loader(module: ModuleType) -> None:
    module.load = _afterwards(module.load, _loaded_distributed)  # type: ignore[attr-defined]


def _hook_making_room(module: ModuleType) -> None:
    """Do not count the step that makes an optimizer's state, to load into (torch 2.2)."""
    plain = getattr(module, "_init_optim_state", None)
    if plain is None:
        return

    @functools.wraps(plain)
    def make_room(*args: Any, **kwargs: Any) -> Any:
        _inside.room = True
        try:
            return plain(*args, **kwargs)
        finally:
            _inside.room = False

    module._init_optim_state = make_room  # type: ignore[attr-defined]


def _afterwards(plain: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    """Return `plain`, followed by `note(value, *args, **kwargs)`, unless inside another one.

    Only the main thread's calls are noted: others are parts of what it began, and would read state
    while it changes.
    """

    @functools.wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "busy", False) or _moments is None or not _in_main_thread():
            return plain(*args, **kwargs)
        _moments.before_files()
        _inside.busy = True
        try:
            value = plain(*args, **kwargs)
            note(value, *args, **kwargs)
            return value
        finally:
            _inside.busy = False

    return wrapped


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _saved(_value: Any, obj: Any = None, f: Any = None, *_args: Any, **_kwargs: Any) -> None:
    if _moments is not None and _is_file(f):
        _moments.file_saved(obj, "torch.save")


def _loaded(_value: Any, f: Any = None, *_args: Any, **_kwargs: Any) -> None:
    if _moments is not None and _is_file(f):
        _moments.file_loaded("torch.load")


def _is_file(target: Any) -> bool:
    """Whether it is a file: programs copy and send objects through buffers, too."""
    return isinstance(target, (str, os.PathLike)) or isinstance(getattr(target, "name", None), str)


def _saved_distributed(_value: Any, state_dict: Any = None, *_args: Any, **_kwargs: Any) -> None:
    if _moments is not None:
        _moments.file_saved(state_dict, "torch.distributed.checkpoint")


def _saving_distributed(value: Any, state_dict: Any = None, *_args: Any, **_kwargs: Any) -> None:
    """An asynchronous save is done when its future is (an object with two of them: torch 2.7)."""
    current = _moments
    if current is None:
        return
    checkpoint = current.file_saved(state_dict, "torch.distributed.checkpoint")
    future = getattr(value, "upload_completion", value)
    if checkpoint is None or not hasattr(future, "add_done_callback"):
        return
    current.begun(checkpoint)
    future.add_done_callback(lambda _: current.finished(checkpoint))


def _loaded_distributed(_value: Any, *_args: Any, **_kwargs: Any) -> None:
    if _moments is not None:
        _moments.file_loaded("torch.distributed.checkpoint")
