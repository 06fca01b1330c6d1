"""Whether a value is one that a rule of a policy profile accepts: pure."""

from __future__ import annotations

import re
from typing import Any, List, Mapping

from .values import canonical

SEPARATOR = ","


def accepts(rule: Mapping[str, Any], value: Any) -> bool:
    """Whether `rule` accepts a value that somebody set; None, nobody, is never wrong.

    rule: `accept` (a list of values), `tokens` (each part of a list with commas is one of these,
    in any case of letters where `ignore_case`) or `pattern` (an expression for the whole text).
    """
    if value is None:
        return True
    if rule.get("tokens"):
        return isinstance(value, str) and _all_tokens(rule, value)
    if rule.get("pattern"):
        return isinstance(value, str) and re.fullmatch(rule["pattern"], value) is not None
    said = canonical(value)
    return any(canonical(each) == said for each in rule.get("accept") or ())


def expected(rule: Mapping[str, Any]) -> str:
    """What `rule` accepts, for people."""
    if rule.get("tokens"):
        return "a list of " + ", ".join(rule["tokens"])
    if rule.get("pattern"):
        return "text that is all of %s" % rule["pattern"]
    return " or ".join(shown(each) for each in rule.get("accept") or ()) or "nothing"


def shown(value: Any) -> str:
    """A value for people: that of a variable as it is set, a switch as Python writes it."""
    if value is None:
        return "not set"
    if isinstance(value, (list, tuple)):
        return "(%s)" % ", ".join(shown(each) for each in value)
    return repr(value) if not isinstance(value, str) or not value else value


def _all_tokens(rule: Mapping[str, Any], value: str) -> bool:
    known = [_cased(rule, token) for token in rule["tokens"]]
    found = tokens_of(value)
    return bool(found) and all(_cased(rule, token) in known for token in found)


def tokens_of(value: str) -> List[str]:
    """The parts of a list with commas."""
    return [part.strip() for part in value.split(SEPARATOR) if part.strip()]


def _cased(rule: Mapping[str, Any], token: str) -> str:
    return token.lower() if rule.get("ignore_case") else token
