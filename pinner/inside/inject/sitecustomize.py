"""Start pinner in this Python process, then run the sitecustomize this file hides.

Python's own start-up imports this before the program. It parses on every Python since 2.7, so
that a Python too old for pinner is told so instead of running unpinned.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _refuse(cause):
    # type: (object) -> None
    """One line on stderr, a fault file for the launcher, and the reserved exit code."""
    line = "pinner: cannot start in this process: %s\n" % " ".join(str(cause).split())
    try:  # noqa: SIM105
        os.write(2, line.encode("utf-8", "replace"))
    except Exception:
        pass
    try:  # noqa: SIM105
        _leave_fault(" ".join(str(cause).split()))
    except Exception:
        pass
    os._exit(96)


def _leave_fault(cause):
    # type: (str) -> None
    import json
    import time

    name = "%s-%d-%x" % (os.uname()[1], os.getpid(), int(time.time() * 1e6))
    folder = os.path.join(os.environ["PINNER_SESSION"], "faults")
    hidden = os.path.join(folder, "." + name)
    fault = {
        "cause": "cannot start in this process: " + cause,
        "rows": [],
        "host": os.uname()[1],
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "argv": list(getattr(sys, "argv", [])),
        "executable": sys.executable,
        "time": time.time(),
    }
    with open(hidden, "w") as out:
        out.write(json.dumps(fault) + "\n")
    os.rename(hidden, os.path.join(folder, name + ".json"))


def _begin():
    # type: () -> None
    """Load the folder above as `pinner.inside`, whatever `pinner` is installed, and begin."""
    if not os.environ.get("PINNER_SESSION"):
        return
    if sys.version_info < (3, 8):
        _refuse("Python 3.8 or newer is needed, this is %d.%d" % sys.version_info[:2])
    try:
        _load_inside(os.path.dirname(_HERE))
        from pinner.inside import start

        start.begin(os.environ)
    except Exception as error:
        _refuse(_describe(error))


def _describe(error):
    # type: (Exception) -> str
    if type(error).__module__ == "pinner.inside.faults":
        return str(error)
    return "%s: %s" % (type(error).__name__, error)


def _load_inside(folder):
    # type: (str) -> None
    """Put the package in `folder` into sys.modules without importing a parent `pinner`."""
    name = "pinner.inside"
    if name in sys.modules:
        return
    from importlib.machinery import ModuleSpec, SourceFileLoader

    path = os.path.join(folder, "__init__.py")
    loader = SourceFileLoader(name, path)
    spec = ModuleSpec(name, loader, origin=path, is_package=True)
    spec.has_location = True
    spec.submodule_search_locations = [folder]
    module = type(sys)(name)
    module.__file__ = path
    module.__path__ = [folder]
    module.__package__ = name
    module.__loader__ = loader
    module.__spec__ = spec
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _run_hidden():
    # type: () -> None
    """Run the sitecustomize that this file hides, as Python would have."""
    if sys.version_info < (3, 4):
        return
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(__name__, _behind_us(sys.path))
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules[__name__] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.stderr.write("pinner: %s raised %s: %s\n" % (spec.origin, type(error).__name__, error))
        raise


def _behind_us(path):
    # type: (list[str]) -> list[str]
    """What Python would have searched next. Not what comes before: of two pinners, each would
    find the other."""
    ours = [i for i, entry in enumerate(path) if os.path.abspath(entry) == _HERE]
    return path[ours[-1] + 1 :] if ours else path


_begin()
if __name__ == "sitecustomize":
    _run_hidden()
