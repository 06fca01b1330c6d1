"""Distributions that belong together: those that require each other at one exact version.

torch requires its triton and its nvidia-* wheels with `==`; a mixture of two torches' parts seldom
starts (pytorch/pytorch#174320). So such a group is moved as one before it is taken apart.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

# NAME[extras] ==VERSION, also in parentheses; a version with a wildcard is no exact one.
_PIN = re.compile(
    r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?\s*===?\s*[^\s,*;()]+\s*\)?\s*"
    r"(?:;(?P<marker>.*))?"
)


def pinned(requires: Iterable[str]) -> tuple[str, ...]:
    """The normalised names that `Requires-Dist` lines pin exactly; those of extras are left out."""
    found = []
    for line in requires:
        match = _PIN.fullmatch(line)
        if match and not re.search(r"\bextra\b", match["marker"] or ""):
            found.append(re.sub(r"[-_.]+", "-", match["name"]).lower())
    return tuple(dict.fromkeys(found))


def groups(
    names: Collection[str], *stacks: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, ...], ...]:
    """The exact-pin groups among `names`, each sorted, in order of their first names.

    Each stack maps a distribution to the names it pins (`pinned`). A pin at either end counts: the
    mixture would break it.
    """
    leader = {name: name for name in names}

    def first(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    for stack in stacks:
        for name, others in stack.items():
            for other in others:
                if name in leader and other in leader:
                    ends = sorted((first(name), first(other)))
                    leader[ends[1]] = ends[0]
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        found.setdefault(first(name), []).append(name)
    return tuple(tuple(group) for _, group in sorted(found.items()) if len(group) > 1)
