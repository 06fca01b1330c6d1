"""Copied into the environment of a probe: says what its interpreters have loaded when they end.

Started by a `.pth` file or a `sitecustomize`, does nothing unless STACKBISECT_LOADED names a
folder. Writes one file a process there: at the start who it is, at the end the top-level modules
(name, version, file), the shared libraries that are mapped, and of each distribution that
STACKBISECT_ASKED names (separated by commas) its version and place. Standard library only, Python
3.8 syntax.
"""

from __future__ import annotations

import os


def begin() -> None:
    """Write that this interpreter started, and arrange for the rest."""
    folder = os.environ.get("STACKBISECT_LOADED")
    if not folder:
        return
    try:
        _write(folder, {"ended": False})
    except OSError:
        return
    import atexit

    atexit.register(_end, folder)


def _end(folder: str) -> None:
    try:
        found = {"ended": True, "modules": _modules(), "libraries": _libraries()}
        found.update(asked=_asked(), host=_host())
        _write(folder, found)
    except OSError:
        return


def _write(folder: str, found: dict[str, object]) -> None:
    import json
    import sys

    found.update(pid=os.getpid(), prefix=sys.prefix, python=list(sys.version_info[:3]))
    path = os.path.join(folder, f"{os.getpid()}.json")
    with open(path + ".new", "w") as file:
        json.dump(found, file)
    os.rename(path + ".new", path)


def _modules() -> dict[str, list[str | None]]:
    import sys

    found: dict[str, list[str | None]] = {}
    for name, module in list(sys.modules.items()):
        fields = getattr(module, "__dict__", {})
        file = fields.get("__file__")
        if "." in name or not isinstance(file, str):
            continue
        version = fields.get("__version__")
        found[name] = [version if isinstance(version, str) else None, file]
    return found


def _asked() -> dict[str, list[str] | None]:
    names = [name for name in os.environ.get("STACKBISECT_ASKED", "").split(",") if name]
    if not names:
        return {}
    from importlib import metadata

    found: dict[str, list[str] | None] = {}
    for name in names:
        try:
            there = metadata.distribution(name)
            found[name] = [there.version, str(there.locate_file(""))]
        except Exception:  # not there, or metadata that cannot be read
            found[name] = None
    return found


def _host() -> dict[str, object] | None:
    try:
        import _stackbisect_host  # type: ignore[import-not-found]
    except ImportError:  # only where the machine is not the one that asks
        return None
    found: dict[str, object] = _stackbisect_host.facts()
    return found


def _libraries() -> list[str]:
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if ".so" in line}
    return sorted(path for path in paths if path.startswith("/"))
