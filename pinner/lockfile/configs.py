"""A config as people read it: Triton's arguments by name, cuBLASLt's fields in its own words."""

from __future__ import annotations

from typing import Any

from pinner.inside.choosers.cublaslt import fields
from pinner.inside.values import readable_named

from .schema import BLOB, Values


def config_text(chooser: str, config: Values) -> str:
    """On one line. The blob of an algorithm says nothing that the fields beside it do not."""
    if chooser != "cublaslt":
        return readable_named(config)
    names = [name for name in fields.ORDER if name in config and name != BLOB]
    names += sorted(config.keys() - {*names, BLOB})
    return " ".join(" ".join(map(str, algorithm_field(name, config[name]))) for name in names)


def algorithm_field(name: str, value: Any) -> tuple[str, Any]:
    """One field's title and its value, both in the words of cuBLASLt where it has some."""
    if type(value) is not int or name not in fields.ORDER or name == BLOB:
        return name.upper(), value
    title, _, word = fields.readable({name: value}).partition(" ")
    return title.upper(), word
