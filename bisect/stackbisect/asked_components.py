"""The options of components: how they are swapped, which of them, and whether files are some.

Adds them to the parser and reads them into what a bisection's journal keeps (see `asked`).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from stackbisect.errors import UsageError
from stackbisect.runtimes.installing import Swapping
from stackbisect.spaces.components import Kind
from stackbisect.spaces.image_contents import normalised

OPTIONS = ("swap", "component", "files")
DEFAULT = "graft"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options, in a group of their own."""
    group = parser.add_argument_group("components of two images")
    group.add_argument(
        "--swap",
        metavar="graft|pip|apt|DIR",
        default=DEFAULT,
        help="how one comes into another image: its files are copied from the image that has it "
        "(default), by pip or apt in a container, or by a script install-NAME in DIR, which gets "
        "the version; what a way cannot do is grafted",
    )
    group.add_argument(
        "--component",
        metavar="KIND:NAME",
        action="append",
        default=[],
        help=f"only this one; kinds: {', '.join(get_args(Kind))}",
    )
    group.add_argument(
        "--files",
        action="store_true",
        help="files outside packages are components too (many count by their folders)",
    )


def setup(arguments: argparse.Namespace) -> dict[str, Any]:
    """What it takes to swap in the same way again. Raises UsageError."""
    swapping = Swapping.parse(arguments.swap)
    return {
        "swap": str(swapping.folder) if swapping.folder else swapping.way,
        "swap_digest": swapping.digest,  # other scripts make other images
        "components": [_component(text) for text in arguments.component],
        "files": arguments.files,
    }


def swapping_of(setup: Mapping[str, Any]) -> Swapping:
    """The inverse, for a journal of any age. Scripts are looked at when one is needed."""
    text = setup.get("swap", DEFAULT)
    if Path(text).is_absolute():
        return Swapping("scripts", Path(text), setup["swap_digest"])
    return Swapping.parse(text)


def only(setup: Mapping[str, Any]) -> Sequence[str]:
    """The components that were named."""
    found: Sequence[str] = setup.get("components", ())
    return found


def _component(text: str) -> str:
    kind, colon, name = text.partition(":")
    if not colon or kind not in get_args(Kind) or not name:
        raise UsageError(
            f"--component: expected KIND:NAME with one of {', '.join(get_args(Kind))}, "
            f"found {text!r}"
        )
    if kind == "file" and not Path(name).is_absolute():
        raise UsageError(f"--component {text}: expected an absolute path")
    return f"{kind}:{normalised(name) if kind == 'distribution' else name}"
