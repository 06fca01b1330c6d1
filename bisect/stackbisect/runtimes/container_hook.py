"""Copied into a container as `sitecustomize.py`: starts `loaded_hook`, then runs the one it hides.

It stands behind pinner's own on the PYTHONPATH, which runs it. Nothing it does may stop a program:
where it fails, nothing is told of that process.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _begin() -> None:
    try:
        import _stackbisect_loaded  # type: ignore[import-not-found]  # copied beside this

        _stackbisect_loaded.begin()
    except Exception as error:
        sys.stderr.write(f"stackbisect: what is loaded here is not told: {error}\n")


def _run_hidden() -> None:
    """Run the sitecustomize that this file hides, as Python would have."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    places = [k for k, entry in enumerate(sys.path) if os.path.abspath(entry) == _HERE]
    spec = PathFinder.find_spec(__name__, sys.path[places[-1] + 1 :] if places else sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules[__name__] = module
    spec.loader.exec_module(module)


_begin()
if __name__ == "sitecustomize":
    _run_hidden()
