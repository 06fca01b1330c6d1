"""The values that `@triton.heuristics` computes for a call: not chosen, but part of what ran."""

from __future__ import annotations

from typing import Any, Dict, Sequence

from ... import values


def values_in_force(tuner: Any, outer: Sequence[str], arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Argument name to encoded value; silent about those that cannot be evaluated or encoded.

    outer: names that heuristics around the autotuner computed: they arrived as arguments.
    arguments: the arguments of the call and the fields of its config. Heuristics under the
    autotuner run later, so their rules are evaluated here once more.
    """
    found = {name: arguments[name] for name in outer if name in arguments}
    inner = tuner.fn
    while is_heuristics(inner):
        for name, rule in inner.values.items():
            try:
                found[name] = rule({**arguments, **found})
            except Exception:
                continue  # a user's function, evaluated only to be observed
        inner = inner.fn
    encoded = {}
    for name, value in found.items():
        try:
            encoded[name] = values.encode(value)
        except values.Unpinnable:
            continue
    return encoded


def is_heuristics(kernel: Any) -> bool:
    """Whether this is a `Heuristics` and not a JIT function or an autotuner."""
    return isinstance(getattr(kernel, "values", None), dict)


def tuner_under(heuristics: Any) -> Any:
    """What the heuristics wrap: an autotuner or a JIT function."""
    inner = heuristics
    while is_heuristics(inner):
        inner = inner.fn
    return inner
