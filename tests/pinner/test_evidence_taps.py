"""Metric taps see what a named function takes or returns, and the program does not notice."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pinner import shipped
from pinner.inside.evidence import taps
from pinner.inside.evidence.digest import digest
from pinner.launch.taps import TapError, read_taps
from tests.session_rig import SessionRig

LIBRARY = '''
import functools

def plain(loss, scale=1.0, *rest, **more):
    """Adds up."""
    return loss * scale

def in_place(values):
    values[0] = 99.0
    return values

def nested(loss):
    return {"lm loss": loss, "other": 0.0}, 3

def fails():
    raise KeyError("mine")

class Trainer:
    def step(self, loss):
        self.last = loss
        return loss + 1

    @staticmethod
    def norm(value): return value
    @classmethod
    def named(cls, value): return (cls.__name__, value)
    @property
    def size(self): return 3

class Special(Trainer):
    pass

partial = functools.partial(plain, scale=2.0)
NUMBER = 5
'''


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., SessionRig]:
    def run(code: str, *wanted: dict[str, Any]) -> SessionRig:
        """Run code against the library with these taps."""
        compiled = [{"module": "library", "stream": "s", **tap} for tap in wanted]
        rig = SessionRig(tmp_path / "session", taps=compiled)
        (rig.folder / "library.py").write_text(LIBRARY)
        done = rig.script(code)
        assert done.returncode == 0, done.stderr
        rig.stdout, rig.stderr = done.stdout, done.stderr  # type: ignore[attr-defined]
        return rig

    return run


def digests(rig: SessionRig) -> list[str]:
    return [line["digest"] for line in rig.lines("evidence")]


def of(*values: Any) -> list[str]:
    return [digest(value)[0] for value in values]


class TestWhatIsTapped:
    @pytest.mark.parametrize(
        ("tap", "call", "expected"),
        [
            ({"function": "plain"}, "plain(2.0, 3.0)", [6.0]),
            ({"function": "plain", "value": {"argument": "loss"}}, "plain(2.0, 3.0)", [2.0]),
            ({"function": "plain", "value": {"argument": "loss"}}, "plain(loss=2.0)", [2.0]),
            ({"function": "plain", "value": {"argument": "scale"}}, "plain(2.0, 3.0)", [3.0]),
            ({"function": "plain", "value": {"argument": "scale"}}, "plain(2.0)", [1.0]),
            ({"function": "plain", "value": {"argument": "step"}}, "plain(2.0, step=7)", [7]),
            ({"function": "plain", "value": {"argument": "step"}}, "plain(2.0)", []),
            ({"function": "in_place", "value": {"argument": "values"}}, "in_place([1.0])", [[1.0]]),
            ({"function": "in_place"}, "in_place([1.0])", [[99.0]]),
            ({"function": "nested", "index": 1}, "nested(2.0)", [3]),
            ({"function": "nested", "index": 0, "key": "lm loss"}, "nested(2.0)", [2.0]),
            ({"function": "Trainer.step"}, "Trainer().step(2.0)", [3.0]),
            (
                {"function": "Trainer.step", "value": {"argument": "loss"}},
                "Special().step(2.0)",
                [2.0],
            ),
            (
                {"function": "Trainer.norm"},
                "Trainer.norm(2.0); library.Trainer().norm(3.0)",
                [2.0, 3.0],
            ),
            ({"function": "Trainer.named", "index": 0}, "Special.named(2.0)", ["Special"]),
            (
                {"function": "Special.step"},
                "Special().step(2.0); library.Trainer().step(2.0)",
                [3.0],
            ),
            ({"function": "partial"}, "partial(2.0)", [4.0]),
        ],
    )
    def test_values(
        self,
        run: Callable[..., SessionRig],
        tap: dict[str, Any],
        call: str,
        expected: list[Any],
    ) -> None:
        rig = run(f"import library\nlibrary.{call}\n", tap)
        assert digests(rig) == of(*expected)
        assert rig.lines("problem") == []

    def test_two_taps_on_one_function(self, run: Callable[..., SessionRig]) -> None:
        rig = run(
            "import library; library.plain(2.0, 3.0)",
            {"function": "plain", "stream": "out"},
            {"function": "plain", "stream": "in", "value": {"argument": "loss"}},
        )
        found = {line["stream"]: line["digest"] for line in rig.lines("evidence")}
        assert found == dict(zip(("out", "in"), of(6.0, 2.0), strict=True))

    def test_names_taken_from_the_module_are_tapped_too(
        self, run: Callable[..., SessionRig]
    ) -> None:
        rig = run("from library import plain\nplain(2.0)\nplain(3.0)\n", {"function": "plain"})
        assert [line["step"] for line in rig.lines("evidence")] == [0, 1]


class TestTheFunctionStaysItself:
    def test_how_it_looks(self, run: Callable[..., SessionRig]) -> None:
        code = (
            "import inspect, library, pickle\n"
            "f = library.plain\n"
            "print(f.__name__, f.__doc__, f.__module__, inspect.signature(f))\n"
            "assert pickle.loads(pickle.dumps(f)) is f\n"
            "assert library.Trainer.__dict__['norm'].__class__ is staticmethod\n"
        )
        rig = run(code, {"function": "plain"}, {"function": "Trainer.norm"})
        assert rig.stdout == "plain Adds up. library (loss, scale=1.0, *rest, **more)\n"  # type: ignore[attr-defined]

    def test_its_errors_are_its_own(self, run: Callable[..., SessionRig]) -> None:
        code = (
            "import library\n"
            "for call in (library.fails, lambda: library.plain()):\n"
            "    try: call()\n    except Exception as error: print(repr(error))\n"
        )
        rig = run(code, {"function": "fails"}, {"function": "plain", "value": {"argument": "loss"}})
        assert rig.stdout == (  # type: ignore[attr-defined]
            "KeyError('mine')\n"
            "TypeError(\"plain() missing 1 required positional argument: 'loss'\")\n"
        )
        assert digests(rig) == []

    @pytest.mark.parametrize("order", ["library, torch", "torch, library"])
    def test_a_compiled_region_is_neither_broken_nor_changed(
        self, run: Callable[..., SessionRig], order: str
    ) -> None:
        """A digest inside would break the graph, and other code would be compiled."""
        code = (
            f"import {order}\n"
            "graphs = []\n"
            "def backend(graph, inputs):\n    graphs.append(graph); return graph.forward\n"
            "@torch.compile(backend=backend)\n"
            "def work(x): return library.plain(x * 2, 3.0) + 1\n"
            "print(work(torch.ones(2)).tolist(), len(graphs))\n"
            "library.plain(1.0)\n"
        )
        rig = run(code, {"function": "plain"})
        assert rig.stdout == "[7.0, 7.0] 1\n"  # type: ignore[attr-defined]
        assert digests(rig) == of(1.0)


class TestTapsThatDoNotFit:
    """Another version of a library lacks the function: said by name, and the run goes on."""

    @pytest.mark.parametrize(
        ("tap", "said"),
        [
            ({"function": "gone"}, "expected a function gone in library, found none"),
            ({"function": "Gone.step"}, "expected a function Gone.step in library, found none"),
            ({"function": "NUMBER"}, "expected a function NUMBER in library, found none"),
            ({"function": "Trainer.size"}, "expected a function Trainer.size in library"),
            (
                {"function": "in_place", "value": {"argument": "gone"}},
                "expected an argument 'gone' of library:in_place, found (values)",
            ),
        ],
    )
    def test_it_is_named_at_import(
        self, run: Callable[..., SessionRig], tap: dict[str, Any], said: str
    ) -> None:
        rig = run("import library; print(library.plain(2.0))", tap)
        [problem] = rig.lines("problem")
        assert (problem["kernel"], problem["chooser"]) == ("s", "evidence")
        assert said in problem["text"]
        assert "pinner: no evidence from s: " + said in rig.stderr  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        ("tap", "call", "said"),
        [
            ({"function": "plain", "index": 0}, "plain(2.0)", "no value at index 0, key None"),
            ({"function": "nested", "index": 5}, "nested(2.0)", "no value at index 5"),
            ({"function": "nested", "index": 0, "key": "x"}, "nested(2.0)", "key 'x' (KeyError"),
            ({"function": "nested", "index": 0}, "nested({1})", "found a builtins.set"),
        ],
    )
    def test_a_value_that_is_not_there_is_named_once(
        self, run: Callable[..., SessionRig], tap: dict[str, Any], call: str, said: str
    ) -> None:
        rig = run(f"import library\nfor _ in range(3): library.{call}\n", tap)
        [problem] = rig.lines("problem")
        assert said in problem["text"]

    def test_a_module_that_is_never_imported_says_nothing(
        self, run: Callable[..., SessionRig]
    ) -> None:
        rig = run("pass", {"function": "plain"})
        assert rig.ledgers() == []


class TestShippedTaps:
    def test_torchs_gradient_norm(self, tmp_path: Path) -> None:
        rig = SessionRig(tmp_path / "s", taps=[dict(tap) for tap in read_taps(["torch"])])
        code = (
            "import torch\n"
            "p = torch.nn.Parameter(torch.ones(2)); p.grad = torch.tensor([3.0, 4.0])\n"
            "norm = torch.nn.utils.clip_grad_norm_([p], 1.0)\n"
            "print(norm.item())\n"
        )
        assert rig.script(code).stdout == "5.0\n"
        [line] = rig.lines("evidence")
        import torch

        assert (line["stream"], line["digest"]) == ("torch/gradient_norm", *of(torch.tensor(5.0)))

    def test_the_name_in_the_file_is_the_real_one(self) -> None:
        from torch.nn.utils import clip_grad

        [tap] = [taps.Tap(dict(each)) for each in read_taps(["torch"])]
        function = getattr(clip_grad, tap.function)
        assert (tap.module, tap.argument) == (clip_grad.__name__, None)
        assert list(inspect.signature(function).parameters)[:2] == ["parameters", "max_norm"]
        assert "norm" in (inspect.getdoc(function) or "").split("Returns:")[1]

    def test_every_shipped_file_reads(self) -> None:
        names = [path.stem for path in shipped.taps_dir().glob("*.toml")]
        assert names
        for tap in read_taps(names):
            assert set(tap) >= {"module", "function", "stream"}

    def test_every_tap_gives_its_reason(self) -> None:
        for path in shipped.taps_dir().glob("*.toml"):
            text = path.read_text()
            assert text.count("[[tap]]") == text.count("\nreason = ")


class TestReader:
    GOOD = '[[tap]]\nmodule = "m"\nfunction = "f"\nstream = "s"\n'

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (GOOD + "x = 1\n", "[[tap]] 1: unknown field 'x'"),
            (GOOD + GOOD.replace('"f"', "1"), "[[tap]] 2: function: expected a string, found 1"),
            (GOOD.replace('"s"', '""'), "stream: expected a string"),
            (GOOD.replace('module = "m"\n', ""), "module: expected a string, found None"),
            (GOOD + 'value = "result"\n', 'value: expected "return" or { argument = "NAME" }'),
            (GOOD + "value = { argument = 1 }\n", "value: expected"),
            (GOOD + "value = { argument = 'a', b = 1 }\n", "value: expected"),
            (GOOD + "index = true\n", "index: expected an integer, found True"),
            (GOOD + "key = 1\n", "key: expected a string, found 1"),
            ("", "expected one or more [[tap]] tables"),
            ("[tap]\n", "expected one or more [[tap]] tables"),
            (GOOD + "[other]\n", "found other"),
            ("[[tap", "expected TOML"),
        ],
    )
    def test_a_file_that_cannot_be_used_names_file_and_field(
        self, tmp_path: Path, text: str, said: str
    ) -> None:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        with pytest.raises(TapError) as caught:
            read_taps([str(path)])
        assert str(path) in str(caught.value)
        assert said in str(caught.value)

    def test_a_file_that_is_not_there_says_which_are(self) -> None:
        with pytest.raises(TapError, match=r"pinner brings: .*torch"):
            read_taps(["nothing"])

    def test_the_reason_is_for_readers(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.toml"
        path.write_text(self.GOOD + 'reason = "why"\nvalue = { argument = "a" }\nindex = -1\n')
        [tap] = read_taps([str(path)])
        assert dict(tap) == {
            "module": "m",
            "function": "f",
            "stream": "s",
            "value": {"argument": "a"},
            "index": -1,
        }
