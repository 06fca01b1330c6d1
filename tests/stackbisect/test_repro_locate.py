"""Where two stacks part: the site, or why one call cannot show it. Traces are written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stackbisect.repro import locate as locating
from stackbisect.repro.locate import NoSite, Site, locate
from stackbisect.repro.stacks import Ran, Watched

Line = dict[str, Any]
Lines = Callable[[str, int], list[Line]]


def event(kind: str, name: str, ins: Sequence[str], outs: Sequence[str], **more: Any) -> Line:
    """One event; tensors are named by their digests, and a digest is its own storage."""

    def rows(names: Sequence[str]) -> list[list[Any]]:
        return [
            [str(at), f"nh128:{each:0>32}", "float32", [4], None, more.get("storage", {}).get(each)]
            for at, each in enumerate(names)
        ]

    place = {"p": more.get("phase", "f"), "s": more.get("step", 0), "q": more.get("order", 0)}
    scope = {"m": more["module"]} if "module" in more else {}
    return {"e": kind, "n": name, "i": 0, **scope, **place, "in": rows(ins), "out": rows(outs)}


@dataclass
class Written:
    """A stack whose traces are given. `lines` gets the level and the number of the run."""

    name: str
    lines: Lines
    failure: str = ""
    world: int | None = None
    levels: list[str] = field(default_factory=list)
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self, *_: Any, **__: Any) -> Ran:
        raise AssertionError("nothing but the user's command is to be run")

    def watch(
        self, argv: Sequence[str], place: Path, trace: Mapping[str, Any], **_: Any
    ) -> Watched:
        level = trace["level"]
        self.levels.append(level)
        rank = None if self.world is None else 0
        folder = place / "session" / "trace" / f"rank-{'none' if rank is None else rank}"
        folder.mkdir(parents=True)
        head = {
            "t": "trace",
            "version": 1,
            "rank": rank,
            "world": self.world,
            "pid": 1,
            "host": "h",
            "time": "2026-01-01T00:00:00Z",
            "level": level,
            "torch": "2.13.0",
            "window": {"from": None, "to": None, "modules": None},
            "algorithm": "nh128",
        }
        events = self.lines(level, self.levels.count(level))
        lines = [head, *events, {"t": "end", "events": len(events)}]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        (folder / "h-1.jsonl").write_text(text)
        return Watched(0, place / "session", place / "log", self.failure)


def found(good: Lines, bad: Lines, folder: Path, **more: Any) -> tuple[Site | NoSite, list[str]]:
    """What is located, and the levels that were traced in the good stack."""
    stacks = Written("good", good, **more), Written("bad", bad, **more)
    answer = locate(*stacks, ["python", "train.py"], folder, lambda line: None)
    return answer, stacks[0].levels


def always(*events: Line) -> Lines:
    return lambda level, number: list(events)


MM = event("op", "aten.mm.default", ["1", "2"], ["3"])
OTHER_MM = event("op", "aten.mm.default", ["1", "2"], ["9"])


def test_the_first_operation_that_differs_on_equal_inputs(tmp_path: Path) -> None:
    before, after = event("op", "aten.relu.default", ["0"], ["1"]), "aten.exp.default"
    good = always(before, MM, event("op", after, ["3"], ["4"]))
    bad = always(before, OTHER_MM, event("op", after, ["9"], ["5"]))
    answer, levels = found(good, bad, tmp_path)
    assert isinstance(answer, Site)
    assert (answer.kind, answer.name, answer.nth) == ("op", "aten.mm.default", 0)
    assert answer.direction == "forward"
    assert levels == ["ops", "ops"], "torch's own operation needs no deeper look"


def test_an_operation_in_the_backward_pass(tmp_path: Path) -> None:
    backward = {"phase": "b", "module": "model.head", "step": 0}
    good = event("op", "aten.mm.default", ["1", "2"], ["3"], **backward)
    bad = event("op", "aten.mm.default", ["1", "2"], ["9"], **backward)
    answer, _ = found(always(good), always(bad), tmp_path)
    assert isinstance(answer, Site)
    assert (answer.direction, answer.module) == ("backward", "model.head")


def test_a_kernel_inside_of_a_custom_operation_is_found_one_level_deeper(tmp_path: Path) -> None:
    def lines(out: str) -> Lines:
        kernel = event("kernel", "lib.norm:norm_kernel", ["1"], [out], order=0)
        outer = event("op", "mylib.norm.default", ["1"], [out], order=1)
        return lambda level, number: [kernel, outer] if level == "kernels" else [outer]

    answer, levels = found(lines("3"), lines("9"), tmp_path)
    assert isinstance(answer, Site)
    assert (answer.kind, answer.name) == ("kernel", "lib.norm:norm_kernel")
    assert levels == ["ops", "ops", "kernels", "kernels"]


def test_a_custom_operation_without_a_kernel_that_is_seen_stays_the_site(tmp_path: Path) -> None:
    lines = [always(event("op", "mylib.norm.default", ["1"], [out])) for out in ("3", "9")]
    answer, _ = found(*lines, tmp_path)
    assert isinstance(answer, Site)
    assert (answer.kind, answer.name) == ("op", "mylib.norm.default")


def test_a_producer_that_nothing_sees_leaves_its_module(tmp_path: Path) -> None:
    def lines(out: str) -> Lines:
        view = event("op", "aten.view.default", ["5"], [out], order=0, module="model.norm")
        module = event("module", "Norm", ["1"], [out], order=1, module="model.norm")
        outer = event("module", "Model", ["1"], [out], order=2, module="model")
        return always(view, module, outer)

    answer, levels = found(lines("3"), lines("9"), tmp_path)
    assert isinstance(answer, Site)
    assert (answer.kind, answer.name, answer.module) == ("module", "Norm", "model.norm")
    assert "nothing that is traced shows it" in answer.text
    assert levels == ["ops", "ops", "kernels", "kernels"]


def test_without_a_module_around_it_there_is_no_site(tmp_path: Path) -> None:
    lines = [always(event("op", "aten.view.default", ["5"], [out])) for out in ("3", "9")]
    answer, _ = found(*lines, tmp_path)
    assert isinstance(answer, NoSite)
    assert answer.reason == locating.UNTRACED


def restless(number: int) -> Line:
    return event("op", "aten.sum.default", ["7"], [str(80 + number)])


@pytest.mark.parametrize("which", ["good", "bad"])
def test_a_stack_that_does_not_repeat_itself_is_refused(which: str, tmp_path: Path) -> None:
    def flips(after: Line) -> Lines:
        return lambda level, number: [restless(number), after]

    calm = event("op", "aten.sum.default", ["7"], ["81"])
    good, bad = always(calm, MM), always(calm, OTHER_MM)
    lines = (flips(MM), bad) if which == "good" else (good, flips(OTHER_MM))
    answer, levels = found(*lines, tmp_path)
    assert isinstance(answer, NoSite)
    assert answer.reason == locating.UNSTABLE
    assert f"the {which} stack does not repeat itself" in answer.text
    assert "aten.sum.default" in answer.text
    assert levels == ["ops", "ops", "kernels", "kernels"]


def test_an_operation_that_does_not_repeat_itself_is_no_site(tmp_path: Path) -> None:
    def flips(level: str, number: int) -> list[Line]:
        return [event("op", "aten.mm.default", ["1", "2"], [str(30 + number)])]

    answer, _ = found(flips, always(OTHER_MM), tmp_path)
    assert isinstance(answer, NoSite)
    assert answer.reason == locating.UNSTABLE


@pytest.mark.parametrize("which", ["good", "bad"])
def test_what_does_not_repeat_itself_later_does_not_matter(which: str, tmp_path: Path) -> None:
    """Workers of a loader, threads: they end in another order each time."""

    def flips(before: Line) -> Lines:
        return lambda level, number: [before, restless(number)]

    good, bad = always(MM), always(OTHER_MM)
    lines = (flips(MM), bad) if which == "good" else (good, flips(OTHER_MM))
    answer, _ = found(*lines, tmp_path)
    assert isinstance(answer, Site)
    assert answer.name == "aten.mm.default"


def test_unstable_inside_of_a_kernel_is_not_unstable(tmp_path: Path) -> None:
    def lines(out: str) -> Lines:
        kernel = event("kernel", "lib.norm:norm_kernel", ["1"], [out])

        def level_lines(level: str, number: int) -> list[Line]:
            inner = event("op", "aten.set_.source_Storage", [], [str(80 + number)])
            return [kernel] if level == "kernels" else [inner, event("op", "aten.mm", [], [out])]

        return level_lines

    answer, _ = found(lines("3"), lines("9"), tmp_path)
    assert isinstance(answer, Site)
    assert answer.name == "lib.norm:norm_kernel"


def test_a_kernel_that_fills_memory_nobody_wrote_is_a_site(tmp_path: Path) -> None:
    def lines(out: str, **extra: Any) -> Lines:
        kernel = event("kernel", "triton:train:kernel", ["1", "2"], [out])
        kernel["in"][1][1] = None
        return always({**kernel, "x": extra})

    full = {"uninitialised": True, "writes": ["1"]}
    answer, _ = found(lines("3", **full), lines("9", **full), tmp_path / "full")
    assert isinstance(answer, Site)
    assert answer.kind == "kernel"
    answer, _ = found(lines("3"), lines("9"), tmp_path / "unknown")
    assert isinstance(answer, NoSite), "an input that was not looked at may be what differs"


def test_a_random_operation_says_that_its_generator_is_an_input(tmp_path: Path) -> None:
    lines = [always(event("op", "aten.randn.default", [], [out])) for out in ("3", "9")]
    answer, _ = found(*lines, tmp_path)
    assert isinstance(answer, Site)
    assert answer.random


def test_other_reasons_for_no_site(tmp_path: Path) -> None:
    state = [always(event("random", "torch.cpu", [], [s])) for s in ("1", "2")]
    seeded = event("random", "torch.cpu", [], ["0"])
    arrived = [always(event("collective", "all_reduce", ["1"], [out])) for out in ("3", "9")]
    outside = [always(event("op", "aten.mm.default", [i, "2"], [i])) for i in ("3", "9")]
    shorter = [always(MM, MM, MM, MM), always(MM)]
    cases = {
        locating.EQUAL: (always(MM), always(MM)),
        locating.RANKS: tuple(arrived),
        locating.OUTSIDE: tuple(outside),
        locating.STRUCTURE: tuple(shorter),
        locating.HISTORY: tuple(
            lambda level, number, each=each: [seeded, *each(level, number)] for each in state
        ),
    }
    for reason, (good, bad) in cases.items():
        answer, _ = found(good, bad, tmp_path / reason)
        assert isinstance(answer, NoSite), reason
        assert answer.reason == reason, answer


def test_an_operation_of_a_library_without_kernels_needs_no_deeper_look(tmp_path: Path) -> None:
    lines = [always(event("op", "numpy.matmul", ["1", "2"], [out])) for out in ("3", "9")]
    answer, levels = found(*lines, tmp_path)
    assert isinstance(answer, Site)
    assert (answer.name, levels) == ("numpy.matmul", ["ops", "ops"])


def test_a_command_in_which_nothing_is_traced_says_so(tmp_path: Path) -> None:
    answer, levels = found(always(), always(), tmp_path)
    assert isinstance(answer, NoSite)
    assert answer.reason == locating.UNTRACED
    assert "nothing was traced" in answer.text
    assert levels == ["ops", "kernels"]


def test_a_command_that_fails_is_no_trace(tmp_path: Path) -> None:
    answer, _ = found(always(MM), always(MM), tmp_path, failure="the command ended with 1: oops")
    assert answer == NoSite(locating.FAILED, "in the good stack the command ended with 1: oops")
