"""Puts the chooser into `triton.runtime.autotuner` right after its import, and nowhere else."""

from __future__ import annotations

import functools
import sys
from typing import Any, Optional

from ... import imports, ledger, pins, session
from . import replay, versions
from .chooser import Chooser, Policy

_chooser: Optional[Chooser] = None


def install(autotuner: Any) -> None:
    """Patch `triton.runtime.autotuner`, each time it is executed. Without a session: nothing."""
    active = session.current()
    if active is None:
        return
    chooser = _chooser_of(active)
    patch(autotuner, chooser)
    if active.replay:
        replay.install(autotuner.Autotuner, chooser)


def _chooser_of(active: session.Session) -> Chooser:
    """The chooser of this process, with everything that is set up once."""
    global _chooser
    if _chooser is not None:
        return _chooser
    import triton

    policy = Policy(
        active.enforcing,
        active.on_miss,
        pins.triton_kernel if active.enforcing else _no_kernel,
        versions.version_of(triton.__version__),
    )
    _chooser = Chooser(policy, _write)
    imports.after("triton.compiler", functools.partial(patch_compile, chooser=_chooser))
    ledger.at_exit(_chooser.sweep)
    for module in sorted(pins.modules()) if active.enforcing else ():
        imports.after(module, functools.partial(_check_module, _chooser))
    return _chooser


def patch(autotuner: Any, chooser: Chooser) -> None:
    """Hook the places of `Autotuner` and `Heuristics` that only an undecided call reaches."""
    tuner_class = autotuner.Autotuner
    home = tuner_class.run.__code__.co_filename
    adopt = functools.partial(_adopt, chooser=chooser, base=tuner_class, home=home)
    _after_init(tuner_class, adopt)
    _after_init(autotuner.Heuristics, chooser.name_heuristics)
    _wrap_prune(tuner_class, chooser, home)
    _wrap_warmup(tuner_class, chooser)
    _wrap_bench(tuner_class, chooser)
    if hasattr(tuner_class, "check_disk_cache"):
        _wrap_disk_cache(tuner_class, chooser)


def patch_compile(compiler: Any, chooser: Chooser) -> None:
    """Observe what `triton.compiler.compile` makes; launches look it up there at each compile."""
    original = compiler.compile

    @functools.wraps(original)
    def compile(src: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A001 - Triton's own name
        kernel = original(src, *args, **kwargs)
        chooser.compiled(src, kernel)
        return kernel

    compiler.compile = compile


def _adopt(tuner: Any, chooser: Chooser, base: type, home: str) -> None:
    """Watch a new autotuner, and its class where it prunes in a way of its own."""
    for kind in type(tuner).__mro__:
        if kind is base:
            break
        if "prune_configs" in vars(kind):
            _wrap_prune(kind, chooser, home)
    chooser.register(tuner)


def _after_init(kind: Any, then: Any) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        then(self)

    kind.__init__ = __init__


def _wrap_prune(kind: Any, chooser: Chooser, home: str) -> None:
    """home: the file of Triton's own `run`, whose question can be answered and followed."""
    original = vars(kind)["prune_configs"]
    if getattr(original, "_pinner", False):
        return

    @functools.wraps(original)
    def prune_configs(self: Any, kwargs: Any) -> Any:
        watch = chooser.register(self)
        if watch.warming or watch.asking:  # decides nothing, or a subclass calls its parent
            return original(self, kwargs)
        if sys._getframe(1).f_code.co_filename != home:  # only where nothing is decided yet
            chooser.another_tuner(self)
            return original(self, kwargs)
        watch.asking = True
        try:
            return chooser.ask(self, kwargs, original)
        finally:
            watch.asking = False

    prune_configs._pinner = True  # type: ignore[attr-defined]
    kind.prune_configs = prune_configs


def _wrap_warmup(kind: Any, chooser: Chooser) -> None:
    original = kind.warmup

    @functools.wraps(original)
    def warmup(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch = chooser.register(self)
        watch.warming = True
        try:
            return original(self, *args, **kwargs)
        finally:
            watch.warming = False

    kind.warmup = warmup


def _wrap_bench(kind: Any, chooser: Chooser) -> None:
    original = kind._bench

    @functools.wraps(original)
    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        run = functools.partial(original, self, *args, config=config, **meta)
        return chooser.bench(self, config, run)

    kind._bench = _bench


def _wrap_disk_cache(kind: Any, chooser: Chooser) -> None:
    original = kind.check_disk_cache

    @functools.wraps(original)
    def check_disk_cache(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> Any:
        if not chooser.is_forced(self):
            return original(self, tuning_key, configs, bench_fn)
        bench_fn()  # nothing is timed, so nothing may be stored as a timing
        return False

    kind.check_disk_cache = check_disk_cache


def _check_module(chooser: Chooser, module: Any) -> None:
    chooser.check_module(module.__name__)


def _no_kernel(name: str) -> None:
    return None


def _write(line: Any) -> None:
    ledger.write(line, sync=line["t"] == "choice")
