"""How the parts of a stack are called in sentences for people."""

from __future__ import annotations

from collections.abc import Sequence

from stackbisect.spaces.components import Component

_BEFORE: dict[str, str] = {
    "distribution": "",
    "package": "Debian package ",
    "library": "shared library ",
    "environment": "variable ",
    "file": "file ",
}
_DIGITS = 12


def short(digest: str) -> str:
    """The first digits of a digest, enough to tell bits apart by eye."""
    return (digest.partition(":")[2] or digest)[:_DIGITS]


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def value(text: str | None) -> str:
    """A version, digest or variable's value; a digest is cut short."""
    if text is None:
        return "(absent)"
    return short(text) if text.startswith("sha256:") else text or '""'


def name(component: Component) -> str:
    """`numpy`, `Debian package libc6`, `variable OMP_NUM_THREADS`."""
    return _BEFORE.get(component.kind, "") + component.name


def change(component: Component) -> str:
    """`numpy 2.1.3 → 2.2.0`."""
    between = "=" if component.kind == "environment" else " "
    return f"{name(component)}{between}{value(component.good)} → {value(component.bad)}"


def changes(components: Sequence[Component]) -> str:
    """Several of them: `numpy 1 → 2 and scipy 3 → 4`."""
    return listed([change(each) for each in components])


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), *words[-1:]])


def counted(count: int, word: str) -> str:
    """`1 probe`, `2 probes`."""
    return f"{count} {word}" + ("" if count == 1 else "s")
