"""Inductor of a torch that is too old is left alone, and that is said."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pinner.inside import ledger, session
from pinner.inside.choosers.inductor import hooks, versions


@pytest.mark.parametrize(
    ("version", "older"),
    [
        ("2.4.1+cu121", True),
        ("2.8.0", True),
        ("2.9.0a0+gitabc", False),
        ("2.13.0+cpu", False),
        ("3.0.0", False),
        ("unknown", False),
    ],
)
def test_versions_are_numbers_not_text(version: str, older: bool) -> None:
    assert versions.is_older(version) is older


def test_a_torch_that_is_too_old_runs_unhooked_and_is_named_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(ledger, "write", lambda line, sync=False: lines.append(line))
    monkeypatch.setattr(session, "current", lambda: SimpleNamespace(enforcing=False))
    monkeypatch.setattr(hooks, "_named", False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.6.0+cu124"))
    module = SimpleNamespace(__name__="torch._inductor.runtime.triton_heuristics")
    before = dict(vars(module))
    hooks.install(module)
    hooks.install(module)
    assert vars(module) == before
    (line,) = lines
    assert (line["kind"], line["chooser"]) == ("bypass", "inductor")
    assert "from torch 2.9 on, this is 2.6.0+cu124" in line["text"]
