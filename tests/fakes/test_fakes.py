"""Holds each stand-in to the real thing, wherever the real thing loads."""

from __future__ import annotations

import ast
import inspect
import textwrap

import triton.testing
from triton.backends.nvidia import driver as nvidia

from tests import triton_rig
from tests.fakes import noop_driver, timers


def public(kind):
    return {name for name in vars(kind) if not name.startswith("_")}


def assigned_attributes(kind):
    """Names that a class gives its instances: `self.x = …` anywhere in its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def offered(kind):
    """What a class and its parents offer."""
    names = set()
    for base in kind.__mro__[:-1]:
        names |= set(vars(base)) | assigned_attributes(base)
    return names


def test_the_noop_driver_offers_nothing_that_the_real_one_does_not():
    assert public(noop_driver.NoopDriver) <= offered(nvidia.CudaDriver)
    assert public(noop_driver.NoopUtils) <= offered(nvidia.CudaUtils) | {"unload_module"}


def test_benchmarks_are_called_as_tritons_own():
    parameters = inspect.signature(triton.testing.do_bench).parameters
    assert "quantiles" in parameters
    for benchmark in (timers.shuffled(1), timers.inverted(), timers.near_tie(1)):
        figures = benchmark(lambda: None, quantiles=(0.5, 0.2, 0.8))
        assert len(figures) == 3
        assert all(figure > 0 for figure in figures)


def test_the_rig_puts_triton_back():
    before = dict(vars(triton_rig.autotuner.Autotuner))
    with triton_rig.observing():
        assert dict(vars(triton_rig.autotuner.Autotuner)) != before
    assert dict(vars(triton_rig.autotuner.Autotuner)) == before
