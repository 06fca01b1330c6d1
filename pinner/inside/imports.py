"""Run callbacks right before and after a named module is executed, without importing it.

A finder in front of `sys.meta_path` asks the other finders for the module and puts a thin loader
around the one they return. That loader steps aside before the module's own code runs, so the
module, its `__loader__` and its `__spec__` are what they would be without us. Modules nobody
asked about cost one dictionary look-up.
"""

from __future__ import annotations

import sys
import threading

from . import faults

TYPE_CHECKING = False  # importing `typing` would double the cost of starting
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple


class _Hooks:
    """The callbacks of one module, and the threads that are executing it right now.

    met: whether the module was executed under our eyes, or imported when it was asked about.
    """

    __slots__ = ("after", "before", "executing", "met")

    def __init__(self) -> None:
        self.before: List[Callable[[], object]] = []
        self.after: List[Callable[[ModuleType], object]] = []
        self.executing = 0
        self.met = False


_hooks: Dict[str, _Hooks] = {}
_lock = threading.RLock()
_searching = threading.local()


def before(name: str, callback: Callable[[], object]) -> None:
    """Call `callback()` just before the code of module `name` runs, each time it is executed.

    A module that is already imported is past that point: the callback waits for a reload.
    """
    with _lock:
        _of(name).before.append(callback)


def after(name: str, callback: Callable[[ModuleType], object]) -> None:
    """Call `callback(module)` right after the code of module `name` ran.

    At once where the module is imported already; again if the module is executed again
    (`importlib.reload`, or a first import that failed), because that code undid what the
    callback did. A PinnerError from the callback reaches the importer; anything else ends the
    process, since a hook that is not in place would be an unpinned run.
    """
    with _lock:
        hooks = _of(name)
        hooks.after.append(callback)
        module = sys.modules.get(name)
        ready = module is not None and not hooks.executing
        hooks.met = hooks.met or ready
    if ready and module is not None:
        _call(name, callback, module)


def passed_by(name: str) -> bool:
    """Whether the module was imported without our hooks: another finder had placed itself first.

    A module that somebody made by hand has no spec, and is not what we hook.
    """
    hooks = _hooks.get(name)
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return hooks is not None and not hooks.met and spec is not None


def finders_ahead() -> List[str]:
    """The type names of the finders that are asked before ours."""
    names = []
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            break
        names.append(getattr(finder, "__name__", type(finder).__name__))
    return names


def install() -> None:
    """Put the finder in front of `sys.meta_path`, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _of(name: str) -> _Hooks:
    hooks = _hooks.get(name)
    if hooks is None:
        hooks = _hooks[name] = _Hooks()
    return hooks


def _call(name: str, callback: Callable[..., object], *args: Any) -> None:
    try:
        callback(*args)
    except faults.PinnerError:
        raise
    except Exception as error:
        faults.die("cannot hook %s: %s%s" % (name, faults.describe(error), _place(error)))


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return " (%s:%d)" % (trace.tb_frame.f_code.co_filename, trace.tb_lineno)


class _Finder:
    """Finds hooked modules through the other finders, and nothing else."""

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if name not in _hooks:
            return None
        names = _searched()
        if name in names:  # another finder asks the whole of sys.meta_path again
            return None
        names.add(name)
        try:
            spec = _ask_others(self, name, path, target)
        finally:
            names.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _wrap(spec.loader)
        return spec  # a namespace package has no loader and no code: nothing to wait for

    def find_module(self, name: str, path: Optional[Sequence[str]] = None) -> None:
        """Answer the protocol of Python 3.8 to 3.11 for finders that still ask it."""


def _searched() -> Set[str]:
    names: Optional[Set[str]] = getattr(_searching, "names", None)
    if names is None:
        names = _searching.names = set()
    return names


def _ask_others(
    own: _Finder, name: str, path: Optional[Sequence[str]], target: Optional[ModuleType]
) -> Optional[ModuleSpec]:
    for finder in list(sys.meta_path):
        if finder is own:
            continue
        find_spec = getattr(finder, "find_spec", None)
        if find_spec is not None:
            spec: Optional[ModuleSpec] = find_spec(name, path, target)
        else:
            spec = _ask_legacy(finder, name, path)
        if spec is not None:
            return spec
    return None


def _ask_legacy(finder: Any, name: str, path: Optional[Sequence[str]]) -> Optional[ModuleSpec]:
    find_module = getattr(finder, "find_module", None)
    if find_module is None:
        return None
    loader = find_module(name, path)
    if loader is None:
        return None
    from importlib.util import spec_from_loader

    return spec_from_loader(name, loader)


def _wrap(loader: Any) -> Any:
    if isinstance(loader, (_Loader, _LegacyLoader)):
        return loader
    return _Loader(loader) if hasattr(loader, "exec_module") else _LegacyLoader(loader)


class _Proxy:
    """Stands in for a loader in a spec: every attribute is the real one's."""

    def __init__(self, loader: Any) -> None:
        self._pinner_loader = loader

    def __getattr__(self, name: str) -> Any:
        if name == "_pinner_loader":  # a copy that was never initialised
            raise AttributeError(name)
        return getattr(self._pinner_loader, name)

    def __reduce_ex__(self, protocol: Any) -> Tuple[Any, ...]:
        return _itself, (self._pinner_loader,)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance(spec.loader, SourceFileLoader) stays true
        return type(self._pinner_loader)

    def __repr__(self) -> str:
        return repr(self._pinner_loader)


def _itself(loader: Any) -> Any:
    return loader


class _Loader(_Proxy):
    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        create = getattr(self._pinner_loader, "create_module", None)
        return None if create is None else create(spec)

    def exec_module(self, module: ModuleType) -> None:
        loader = self._pinner_loader
        _step_aside(module, self, loader)
        name = _name_of(module)
        hooks = _enter(name)
        try:
            for callback in list(hooks.before):
                _call(name, callback)
            loader.exec_module(module)
        finally:
            callbacks = _leave(hooks)
        for done in callbacks:
            _call(name, done, module)


class _LegacyLoader(_Proxy):
    """For loaders that only know `load_module`, the protocol before Python 3.4."""

    def load_module(self, name: str) -> ModuleType:
        hooks = _enter(name)
        try:
            for callback in list(hooks.before):
                _call(name, callback)
            module = self._pinner_loader.load_module(name)
        finally:
            callbacks = _leave(hooks)
        for done in callbacks:
            _call(name, done, module)
        return module  # type: ignore[no-any-return]


def _step_aside(module: ModuleType, own: Any, loader: Any) -> None:
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.loader is own:
        spec.loader = loader
    if getattr(module, "__loader__", None) is own:
        module.__loader__ = loader


def _name_of(module: ModuleType) -> str:
    spec = getattr(module, "__spec__", None)
    return module.__name__ if spec is None else spec.name


def _enter(name: str) -> _Hooks:
    with _lock:
        hooks = _of(name)
        hooks.executing += 1
        hooks.met = True
    return hooks


def _leave(hooks: _Hooks) -> List[Callable[[ModuleType], object]]:
    with _lock:
        hooks.executing -= 1
        return list(hooks.after)
