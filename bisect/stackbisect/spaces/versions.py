"""Orders and compares versions: Python's (PEP 440), and whatever people write as container tags."""

from __future__ import annotations

import re
from typing import Any

# PEP 440, appendix B, without the parts that do not bear on equality.
_PEP440 = re.compile(
    r"""
    v?
    (?:(?P<epoch>\d+)!)?
    (?P<release>\d+(?:\.\d+)*)
    (?:[-_.]?(?P<pre>alpha|a|beta|b|preview|pre|c|rc)[-_.]?(?P<pre_n>\d*))?
    (?:(?:[-_.]?(?:post|rev|r)[-_.]?(?P<post>\d*))|(?:-(?P<implicit_post>\d+)))?
    (?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_n>\d*))?
    (?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?
    """,
    re.VERBOSE,
)
_PRE = {"alpha": "a", "beta": "b", "preview": "rc", "pre": "rc", "c": "rc"}

# Words that come before the release they announce, in order (PEP 440 and what tags add to it).
_EARLY = {
    "nightly": 0,
    "dev": 1,
    "alpha": 2,
    "a": 2,
    "beta": 3,
    "b": 3,
    "preview": 4,
    "pre": 4,
    "c": 4,
    "rc": 4,
}
_TOKENS = re.compile(r"\d+|[a-z]+", re.IGNORECASE)
# Where two tags differ in the kind of their next part: a word that announces, nothing, any other
# word (a variant such as `-py3`), a number.
_ANNOUNCES, _ENDS, _WORD, _NUMBER = range(4)

Key = tuple[tuple[int, int, str], ...]


def same(found: str, asked: str) -> bool:
    """Whether two Python versions are one; a local label counts only where `asked` has one."""
    left, right = _parts(found), _parts(asked)
    if left is None or right is None:
        return found.strip() == asked.strip()
    if right["local"] is None:
        left["local"] = None
    return left == right


def is_version(text: str) -> bool:
    """Whether a text is a Python version."""
    return _parts(text) is not None


def is_prerelease(text: str) -> bool:
    """Whether a Python version is a pre-release (a, b, rc or dev)."""
    parts = _parts(text)
    return parts is not None and (parts["pre"] is not None or parts["dev"] is not None)


def order(version: str) -> tuple[Any, ...]:
    """A sort key by PEP 440; what is no version comes first."""
    parts = _parts(version)
    if parts is None:
        return ()
    # dev before pre before the release itself; without a dev part it comes after every dev.
    early = parts["pre"] or (("", 0) if parts["dev"] is not None and parts["post"] is None else ())
    return (
        parts["epoch"],
        parts["release"],
        early or ("z", 0),
        -1 if parts["post"] is None else parts["post"],
        float("inf") if parts["dev"] is None else parts["dev"],
        parts["local"] or "",
    )


def tag_key(tag: str) -> Key | None:
    """A sort key for a tag, or None where it has no number and so no place in an order.

    Numbers count as numbers wherever they stand (`24.05-py3`, `v2.1.0`, `2.0.0rc1`,
    `cu126-2.7`), `2.0rc1` comes before `2.0`, and a variant (`2.0-slim`) after it.
    """
    tokens = _TOKENS.findall(tag.lower())
    if tokens and tokens[0] == "v":
        tokens = tokens[1:]
    if not any(token.isdigit() for token in tokens):
        return None
    return (*(_token_key(token) for token in tokens), (_ENDS, 0, ""))


def form(tag: str) -> str:
    """What a tag looks like with its numbers taken out: `24.05-py3` is `#.#-py#`."""
    return re.sub(r"\d+", "#", tag)


def _token_key(token: str) -> tuple[int, int, str]:
    if token.isdigit():
        return (_NUMBER, int(token), "")
    if token in _EARLY:
        return (_ANNOUNCES, _EARLY[token], "")
    return (_WORD, 0, token)


def _parts(text: str) -> dict[str, Any] | None:
    match = _PEP440.fullmatch(text.strip().lower())
    if match is None:
        return None
    release = [int(part) for part in match["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    pre = match["pre"]
    post = match["implicit_post"] if match["implicit_post"] is not None else match["post"]
    return {
        "epoch": int(match["epoch"] or 0),
        "release": release,
        "pre": None if pre is None else (_PRE.get(pre, pre), int(match["pre_n"] or 0)),
        "post": None if post is None else int(post or 0),
        "dev": None if match["dev"] is None else int(match["dev_n"] or 0),
        "local": None if match["local"] is None else re.sub(r"[-_.]", ".", match["local"]),
    }
