"""Wheels written by hand, and a series of them whose summation order changes at one version."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

SUMMING = '''"""A sum whose order is {order}."""

__version__ = "{version}"


def total(values):
    found = 0.0
    for value in {expression}:
        found += value
    return found
'''

ORDERS = {"forward": "values", "backward": "reversed(values)", "by size": "sorted(values)"}


def write(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    requires: Sequence[str] = (),
) -> Path:
    """A wheel of pure Python files."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {each}" for each in requires]
    whole = {
        **files,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={_hash(text)},{len(text.encode())}" for path, text in whole.items()]
    whole[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in whole.items():
            wheel.writestr(member, text)
    return path


def summing(folder: Path, orders: Mapping[str, str], name: str = "summing") -> None:
    """One wheel for each version; `orders` says in which order each one sums (`ORDERS`)."""
    for version, order in orders.items():
        source = SUMMING.format(order=order, version=version, expression=ORDERS[order])
        write(folder, name, version, {f"{name}/__init__.py": source})


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
