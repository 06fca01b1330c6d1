"""FlagGems' own tuner: it times Triton configs and keeps the winners in a database of its own.

Each of its tables has a dictionary in front of the database, which is filled when a key is first
used, by a timing of this run or of an earlier one: there the config is written down. Enforcing puts
the locked configs into that dictionary when the table is made, so that neither the database nor the
clock is asked, and the database is left as it is. (FlagGems 3.0, src/flag_gems/utils/libentry.py)
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from typing import TYPE_CHECKING, Any, Dict

from .. import own_tuners
from . import settings

if TYPE_CHECKING:
    from types import ModuleType
    from typing import List, Tuple

CHOOSER = "flag_gems"
_DECIDED = "timed in this run, or found in FlagGems' database"
_UNKNOWN = (
    "this FlagGems has no table of configs that is known here, and what its tuner picks is not "
    "held: enable it only for operators that are not tuned (unused=…)"
)

_known = False


def install(package: ModuleType) -> None:
    """Name a FlagGems of another layout once its operators stand in for torch's."""
    for name in ("enable", "only_enable"):
        if hasattr(package, name):
            _wrap_enable(package, name)


def install_tuner(libentry: Any) -> None:
    """Hook where a table of configs is made, and where a winner is stored."""
    global _known
    table = getattr(libentry, "ConfigCache", None)
    if table is None:
        return
    _known = True
    own_tuners.hold(libentry.__name__.partition(".")[0])
    _wrap_init(table)
    _wrap_set(table)


def _wrap_enable(package: Any, name: str) -> None:
    original = getattr(package, name)

    @functools.wraps(original)
    def enable(*args: Any, **kwargs: Any) -> Any:
        if not _known:
            settings.report(CHOOSER, "libtuner", True, settings.NOT_HELD, _UNKNOWN)
        return original(*args, **kwargs)

    setattr(package, name, enable)


def _wrap_init(table: Any) -> None:
    original = table.__init__

    @functools.wraps(original)
    def __init__(self: Any, table_name: str, *args: Any, **kwargs: Any) -> None:
        original(self, table_name, *args, **kwargs)
        self.dict_cache = _Decided(table_name, self.dict_cache)
        for name, value in settings.forced(CHOOSER).items():
            if name.startswith(table_name + " "):
                self.dict_cache[tuple(value[0])] = _config(value[1])

    table.__init__ = __init__


def _wrap_set(table: Any) -> None:
    """Under a lock a winner is by rule, not by timing: it must not stay for other runs."""
    original = table.set

    @functools.wraps(original)
    def set(self: Any, key: Any, config: Any) -> None:  # noqa: A001 - FlagGems' own name
        if settings.on_miss() == "tune":
            original(self, key, config)
            return
        name = name_of(self.table_name, key)
        settings.refuse_miss(CHOOSER, name, "the first config that can run is taken")
        self.dict_cache[key] = config

    table.set = set


class _Decided(Dict[Any, Any]):
    """The dictionary of a table; only storing has a method of ours."""

    def __init__(self, table_name: str, content: Any) -> None:
        super().__init__(content)
        self._table_name = table_name

    def __setitem__(self, key: Any, config: Any) -> None:
        super().__setitem__(key, config)
        value = [list(key), _pairs(config)]
        settings.report_forced(CHOOSER, name_of(self._table_name, key), value, _DECIDED)


def name_of(table: str, key: Any) -> str:
    """The table (kernel, and FlagGems' digest of its source and configs), and one of the key."""
    return "%s %s" % (table, hashlib.sha256(repr(tuple(key)).encode("utf-8")).hexdigest()[:16])


def _pairs(config: Any) -> List[List[Any]]:
    """A config as FlagGems' database keeps it: names and plain values."""
    every: Dict[str, Any] = config.all_kwargs()
    return [[name, every[name]] for name in sorted(every) if _is_plain(every[name])]


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, str))


def _config(pairs: Any) -> Any:
    """The config that FlagGems would make of a row of its database."""
    import triton

    own = inspect.signature(triton.Config).parameters
    kwargs, options = _split(pairs, own)
    return triton.Config(kwargs, **options)


def _split(pairs: Any, own: Any) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    options = {name: value for name, value in pairs if name in own}
    return {name: value for name, value in pairs if name not in own}, options
