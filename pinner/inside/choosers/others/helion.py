"""Helion's autotuner: the config of each kernel and kind of argument, found by search and timing.

A bound kernel without one config of its own asks `BoundKernel.autotune` once; that is where the
config is written down, whether it was timed or came from Helion's cache on disk. Enforcing answers
there with the locked config through `set_config`, Helion's own way to give one: neither its search
nor its cache is asked. A kernel that is not in the lock takes Helion's default config, as under
HELION_AUTOTUNE_EFFORT=none. (helion 1.4, helion/runtime/kernel.py)
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from typing import TYPE_CHECKING

from ... import faults
from . import settings

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

CHOOSER = "helion"
_SEARCHED = "a config that was searched by timing, or stood in Helion's cache"
_SEVERAL = "one config for several shapes is searched by timing: give config= to helion.kernel"


def install(module: ModuleType) -> None:
    """Hook where a bound kernel has no config yet."""
    bound = module.BoundKernel
    original = bound.autotune

    @functools.wraps(original)
    def autotune(self: Any, args: Any, *rest: Any, **kwargs: Any) -> Any:
        name = name_of(self, args)
        wanted = settings.forced(CHOOSER).get(name)
        if wanted is not None:
            config = _locked_config(self, module, name, str(wanted))
        elif settings.on_miss() == "tune":
            config = original(self, args, *rest, **kwargs)
        else:
            settings.refuse_miss(CHOOSER, name, "Helion's default config is taken")
            config = self.config_spec.default_config()
            self.set_config(config)
        settings.report_forced(CHOOSER, name, config.to_json(), _SEARCHED)
        return config

    bound.autotune = autotune
    _name_multi(module.Kernel)


def _locked_config(bound: Any, module: Any, name: str, text: str) -> Any:
    try:
        config = module.Config.from_json(text)
        bound.set_config(config)
    except Exception as error:
        cause = "the locked config cannot be used: %s" % faults.describe(error)
        settings.problem("invalid", CHOOSER, name, cause)
        raise faults.InvalidPin("helion: %s: %s" % (name, cause)) from error
    return config


def _name_multi(kernel: Any) -> None:
    """`autotune_multi` (helion 1.4) searches one config for a set of shapes, past `autotune`."""
    original = getattr(kernel, "autotune_multi", None)
    if original is None:
        return

    @functools.wraps(original)
    def autotune_multi(self: Any, *args: Any, **kwargs: Any) -> Any:
        settings.report(CHOOSER, "autotune_multi " + self.name, True, settings.NOT_HELD, _SEVERAL)
        return original(self, *args, **kwargs)

    kernel.autotune_multi = autotune_multi


def name_of(bound: Any, args: Any) -> str:
    """What the choice is called: the kernel, and a digest of its source and kind of arguments."""
    kernel = bound.kernel
    parts = [_source(kernel), text_of(kernel.specialization_key(args))]
    digest = hashlib.sha256("\n".join(parts).encode("utf-8")).hexdigest()[:16]
    return "%s %s" % (kernel.name, digest)


def _source(kernel: Any) -> str:
    try:
        return inspect.getsource(kernel.fn)
    except (OSError, TypeError):
        return ""


def text_of(key: Any) -> str:
    """A key as text that is the same in every process: sets in order, no addresses."""
    if isinstance(key, (tuple, list)):
        return "(%s)" % ",".join(map(text_of, key))
    if isinstance(key, (set, frozenset)):
        return "{%s}" % ",".join(sorted(map(text_of, key)))
    return re.sub(r" at 0x[0-9a-f]+", "", repr(key))
