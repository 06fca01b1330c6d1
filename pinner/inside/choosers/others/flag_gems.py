"""FlagGems' own tuner: it times Triton configs and keeps the winners in a database of its own.

Each winner is written down as it is stored. None is held: the database is asked before anything
that pinner can answer, and it outlives the run. (FlagGems 3.0, src/flag_gems/utils/libentry.py)
"""

from __future__ import annotations

import functools
import hashlib
import os
from typing import TYPE_CHECKING

from . import settings

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

CHOOSER = "flag_gems"
DISK_CACHE = "FLAGGEMS_ENABLE_DISK_CACHE"
_ENABLED = (
    "FlagGems' kernels stand in for torch's, and its tuner times them: enable it only for "
    "operators that are not tuned (unused=…), or keep its database ($FLAGGEMS_CACHE_DIR/"
    "config_cache) with the lock"
)
_STORED = "picked by timing in this run, and kept in FlagGems' database"


def install(package: ModuleType) -> None:
    """Name FlagGems once its operators are put in the place of torch's."""
    for name in ("enable", "only_enable"):
        if hasattr(package, name):
            _wrap(package, name)


def install_tuner(libentry: ModuleType) -> None:
    """Write down each winner as it is stored."""
    table = libentry.ConfigCache
    original = table.set

    @functools.wraps(original)
    def set(self: Any, key: Any, config: Any) -> Any:  # noqa: A001 - FlagGems' own name
        _report_enabled()
        settings.report(
            CHOOSER, name_of(self.table_name, key), str(config), settings.NOT_HELD, _STORED
        )
        return original(self, key, config)

    table.set = set


def name_of(table: str, key: Any) -> str:
    """The kernel, without the digest of its source, and a digest of that and the key."""
    kernel = table.rpartition("_")[0] or table
    digest = hashlib.sha256(("%s %r" % (table, key)).encode("utf-8")).hexdigest()[:16]
    return "%s %s" % (kernel, digest)


def _wrap(package: Any, name: str) -> None:
    original = getattr(package, name)

    @functools.wraps(original)
    def enable(*args: Any, **kwargs: Any) -> Any:
        _report_enabled()
        return original(*args, **kwargs)

    setattr(package, name, enable)


def _report_enabled() -> None:
    kept = os.environ.get(DISK_CACHE, "1") == "1"
    where = "database on disk" if kept else "memory"
    settings.report(CHOOSER, "libtuner", where, settings.NOT_HELD, _ENABLED)
