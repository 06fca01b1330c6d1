"""The pytest plugin: tests that hold kernels, modules and recipes to their bits.

Fixtures `repeatable`, `repeatable_matrix` and `standard`; see docs/regressions.md. pytest is
imported here alone, and nothing else is before a test asks for a fixture.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pinner.plugin.matrix import Combination, Matrix
    from pinner.plugin.recipe import Compared
    from pinner.plugin.repeat import Repeated

RUNS = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    """The folder of the standards."""
    parser.addini(
        "pinner_standards",
        "folder of the standards that `pinner standards record` wrote, relative to the rootdir",
        default="standards",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marker that gives a test's numbers."""
    config.addinivalue_line(
        "markers",
        "repeatable(runs=3, fresh_processes=0): how often `repeatable` and `repeatable_matrix` run",
    )


@pytest.fixture
def repeatable(request: pytest.FixtureRequest) -> Repeatable:
    """`repeatable(kernel, x, w)`: outputs and gradients repeat, byte for byte."""
    return Repeatable(request)


@pytest.fixture
def repeatable_matrix(request: pytest.FixtureRequest) -> RepeatableMatrix:
    """`repeatable_matrix(make, (8, 16))`: the same in each layout and format."""
    return RepeatableMatrix(request)


@pytest.fixture
def standard(request: pytest.FixtureRequest) -> RecipeStandard:
    """`standard(name, [sys.executable, "train.py"])`: the recipe leaves the committed series."""
    return RecipeStandard(request)


class Repeatable:
    """Runs a callable again and again from the same inputs and random state."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._calls = 0

    def __call__(
        self,
        function: Callable[..., Any],
        *args: Any,
        runs: int | None = None,
        fresh_processes: int | None = None,
        gradients: bool = True,
        grad_outputs: Sequence[Any] | None = None,
        holding: Sequence[Any] = (),
        **kwargs: Any,
    ) -> Repeated:
        """Fails the test where a run is not like the first one; returns what all runs left.

        args, kwargs: for the callable; tensors, arrays, modules and generators in them are put
        back before each run. runs: in this process (default 3). fresh_processes: how many besides,
        each with empty compile caches. gradients: whether to walk back from outputs that require
        it, from `grad_outputs` where given. holding: what the callable reads or changes besides.
        """
        from pinner.plugin import fresh
        from pinner.plugin.repeat import Call, NotRepeatable, Repeated, compare, repeat

        runs = _number(self._request, "runs", runs, RUNS)
        processes = _number(self._request, "fresh_processes", fresh_processes, 0)
        if runs < 1 or runs + processes < 2:
            raise ValueError(f"expected two runs or more to compare, found {runs + processes}")
        call = Call(function, args, kwargs, gradients, grad_outputs, tuple(holding))
        number, self._calls = self._calls, self._calls + 1
        if fresh.inside_one(os.environ):
            return self._answer(call, number)
        problem = ""
        try:
            found = repeat(call, runs)
            for one in range(1, processes + 1):
                name = f"fresh process {one} of {processes}"
                place = _place(self._request, number)
                compare(found.values, fresh.run(call, place, os.environ, name), name)
        except NotRepeatable as error:
            problem = str(error)
        if problem:
            pytest.fail(f"not repeatable: {problem}", pytrace=False)
        return Repeated(runs + processes, found.values)

    def _answer(self, call: Any, number: int) -> Repeated:
        """In a fresh process: the one call that is asked for is the end of the test."""
        from pinner.plugin import fresh
        from pinner.plugin.repeat import repeat

        folder = fresh.asked(os.environ, number)
        if folder is None:
            return repeat(call, 1)
        fresh.answer(call, folder)
        pytest.skip("the call was made in a fresh process")


class RepeatableMatrix:
    """Runs a module in each layout and format."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def __call__(
        self,
        make: Callable[[], Any],
        *shapes: Sequence[int],
        layouts: Sequence[str] | None = None,
        formats: Sequence[str] | None = None,
        unsupported: Mapping[Combination, str] | None = None,
        device: str = "cpu",
        seed: int = 0,
        runs: int | None = None,
        gradients: bool = True,
    ) -> Matrix:
        """Fails the test where a combination does not repeat, or none could be run.

        make: returns the module or function, anew for each combination. shapes: of its inputs,
        which are drawn under `seed`. layouts: of contiguous, transposed, sliced, channels_last
        (default: all). formats: names of torch dtypes (default: float32, bfloat16, float16).
        unsupported: (layout, format) to the reason for which it is left out.
        """
        from pinner.plugin import matrix
        from pinner.plugin.repeat import NotRepeatable

        runs = _number(self._request, "runs", runs, RUNS)
        if runs < 2:
            raise ValueError(f"expected two runs or more to compare, found {runs}")
        asked = matrix.Asked(
            make,
            tuple(tuple(shape) for shape in shapes),
            matrix.LAYOUTS if layouts is None else layouts,
            matrix.FORMATS if formats is None else formats,
            unsupported or {},
            device,
            seed,
            runs,
            gradients,
        )
        try:
            return matrix.run(asked)
        except NotRepeatable as error:
            problem = str(error)
        pytest.fail(f"not repeatable: {problem}", pytrace=False)


class RecipeStandard:
    """Runs a recipe and compares its series with the committed standard."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._config = request.config

    def __call__(
        self,
        name: str,
        command: Sequence[str],
        *,
        options: Sequence[str] = (),
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Compared:
        """Fails the test where a series is not the standard's, or nothing could be compared. Skips
        it, with the reason, where there is no standard yet: that is no pass.

        options: more words for `pinner standards compare`, such as `-l pinner.lock.toml`. cwd: of
        the command (default: the rootdir). env: variables on top of this process's.
        """
        from pinner.plugin import recipe

        root = self._config.rootpath
        folder = root / str(self._config.getini("pinner_standards"))
        found = recipe.compare(
            name, command, standards=folder, options=options, cwd=cwd or root, env=env
        )
        if found.exit == 0:
            return found
        if found.details.get("status") == "inactive":
            pytest.skip(found.text)
        pytest.fail(f"standard {name}: {found.text} (exit code {found.exit})", pytrace=False)


def _number(request: pytest.FixtureRequest, name: str, given: int | None, default: int) -> int:
    if given is not None:
        return given
    marker = request.node.get_closest_marker("repeatable")
    value = default if marker is None else marker.kwargs.get(name, default)
    if not isinstance(value, int):
        raise ValueError(f"expected a number for {name} of the marker, found {value!r}")
    return value


def _place(request: pytest.FixtureRequest, number: int) -> Any:
    from pinner.plugin.fresh import Place

    node, config = request.node, request.config
    name = node.nodeid
    group = node.get_closest_marker("xdist_group")
    if group is not None:  # a worker that loads by group appends it
        named = group.args[0] if group.args else group.kwargs.get("name", "default")
        name = name.removesuffix(f"@{named}")
    _, colons, inner = name.partition("::")
    words = [f"{node.path}{colons}{inner}", "-q", "-p", "no:cacheprovider"]
    words += ["-p", "pinner.plugin", "--rootdir", str(config.rootpath)]
    if config.inipath is not None:
        words += ["-c", str(config.inipath)]
    if config.pluginmanager.hasplugin("xdist"):
        words += ["-n", "0"]
    return Place(tuple(words), str(config.invocation_params.dir), number)
