"""Every way past the library in front of cuBLASLt is found and named; none is silent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes.cublaslt_stand_in import Rig, built

LATE = """
import os, ctypes
import pinner.inside.choosers.cublaslt.chooser as chooser
folder = os.environ["CUBLASLT_FAKES"]
first = {first}
chooser.begin()
chooser._chooser.session.cublaslt = "on"
chooser._chooser.install()
"""
IN_USE = (
    "import pinner.inside.choosers.cublaslt.chooser as chooser\n"
    "chooser.device_in_use = lambda: True\n"
)
HANDLE = IN_USE + "l = load('by_handle')\nshow(gemm(l))"


def bypasses(rig: Rig) -> list[str]:
    return rig.problems().get("bypass", [])


def run(folder: Path, code: str, **settings: str) -> Rig:
    rig = Rig(folder, **settings)
    rig.calls(code)
    return rig


def test_the_right_order_names_nothing(tmp_path: Path) -> None:
    rig = run(tmp_path, IN_USE + "show(gemm(load()))")
    assert rig.problems() == {}
    assert len(rig.choices()) == 1


def test_a_library_in_the_cache_that_was_cut_says_what_to_do(tmp_path: Path) -> None:
    import shutil

    cut = tmp_path / "interpose.so"
    shutil.copy(built() / "interpose.so", cut)
    code = (
        "import pinner.inside.choosers.cublaslt.build as build\n"
        f"build.library = lambda _: {str(cut)!r}\n"
        f"open({str(cut)!r}, 'r+b').truncate(500)\n" + LATE.format(first="None")
    )
    rig = Rig(tmp_path / "run", cublaslt="auto")
    rig.calls(code.replace('cublaslt = "on"', 'cublaslt = "auto"'))
    (text,) = bypasses(rig)
    assert f"remove {cut}, it is built again" in text


class TestLoadedTooEarly:
    def test_the_library_itself(self, tmp_path: Path) -> None:
        late = LATE.format(first="ctypes.CDLL(folder + '/libcublasLt.so.13')")
        rig = run(tmp_path, late + "show(gemm(load()))", cublaslt="off")
        (text,) = bypasses(rig)
        assert "libcublasLt.so.13 was loaded before pinner could stand in front of it" in text

    def test_a_consumer_that_is_bound_already(self, tmp_path: Path) -> None:
        late = LATE.format(first="load()").replace(
            "load()", "ctypes.CDLL(folder + '/libconsumer.so')"
        )
        rig = run(tmp_path, late + "show(gemm(first))", cublaslt="off")
        assert rig.choices() == []
        past = [text for text in bypasses(rig) if "libconsumer.so calls cublasLtMatmul" in text]
        assert len(past) == 2, "both functions are named"

    def test_a_consumer_that_binds_at_its_first_call_is_held(self, tmp_path: Path) -> None:
        """Not called so far: its first call finds the library in front."""
        late = LATE.format(first="load_lazily()")
        rig = run(tmp_path, late + "show(gemm(first))", cublaslt="off")
        assert [line["how"] for line in rig.choices()] == ["heuristic"]
        (text,) = bypasses(rig)
        assert "was loaded before pinner could stand in front of it" in text

    def test_an_enforced_run_is_told_too(self, tmp_path: Path) -> None:
        late = LATE.format(first="ctypes.CDLL(folder + '/libcublasLt.so.13')")
        rig = Rig(tmp_path, cublaslt="off")
        rig.enforce({"cublaslt": []})
        rig.calls(late + "show(gemm(load()))")
        assert len(bypasses(rig)) == 1


class TestPast:
    def test_deep_binding(self, tmp_path: Path) -> None:
        rig = run(tmp_path, "import os\nshow(gemm(load(mode=os.RTLD_DEEPBIND | os.RTLD_NOW)))")
        assert rig.choices() == []
        texts = bypasses(rig)
        assert len([text for text in texts if "libconsumer.so calls cublasLt" in text]) == 2
        assert len([text for text in texts if "libcublas.so.13 calls cublasLt" in text]) == 1
        assert all("RTLD_DEEPBIND" in text for text in texts)

    def test_deep_binding_at_the_first_call(self, tmp_path: Path) -> None:
        code = "import os\nl = load_lazily(mode=os.RTLD_DEEPBIND)\n"
        assert bypasses(run(tmp_path / "uncalled", code)) == []
        texts = bypasses(run(tmp_path / "called", code + "gemm(l)"))
        assert len([text for text in texts if "libconsumer.so calls" in text]) == 2

    def test_functions_looked_up_by_handle(self, tmp_path: Path) -> None:
        (text,) = bypasses(run(tmp_path, HANDLE))
        assert "is mapped and no call was seen" in text

    def test_without_a_device_no_call_is_no_hole(self, tmp_path: Path) -> None:
        """A helper that imported torch and multiplies nothing must not spoil a lock."""
        assert run(tmp_path, HANDLE.replace("True", "False")).problems() == {}

    def test_a_consumer_that_never_called_is_no_hole(self, tmp_path: Path) -> None:
        assert run(tmp_path, IN_USE + "load()").problems() == {}

    def test_a_static_copy_that_calls_itself(self, tmp_path: Path) -> None:
        rig = run(tmp_path, "show(gemm(load('static')))")
        texts = bypasses(rig)
        assert len(texts) == 2
        assert all("libstatic.so brings a copy of cuBLASLt of its own" in text for text in texts)

    def test_a_static_copy_that_can_be_held_is(self, tmp_path: Path) -> None:
        """Its calls are found first in front; the copy then stands for the real library."""
        rig = run(tmp_path, "show(gemm(load('static_open')))")
        assert [line["how"] for line in rig.choices()] == ["heuristic"]
        assert any("libstatic_open.so brings a copy" in text for text in bypasses(rig))

    def test_a_definition_that_stands_before_ours(self, tmp_path: Path) -> None:
        preload = str(built() / "libstatic_open.so")
        rig = Rig(tmp_path)
        rig.calls("show(gemm(load()))", LD_PRELOAD=preload)
        assert any("is that of " + preload in text for text in bypasses(rig))
        assert any("libconsumer.so calls another" in text for text in bypasses(rig))


class TestUnwatched:
    CODE = "show(gemm(load()))"

    def test_off_is_a_hole_where_cublaslt_is(self, tmp_path: Path) -> None:
        rig = run(tmp_path, self.CODE, cublaslt="off")
        (line,) = rig.lines("setting")
        assert (line["name"], line["value"], line["held"]) == ("interposer", "off", "no")
        assert rig.map_files() == []

    @pytest.mark.parametrize("setting", ["off", "on", "auto"])
    def test_a_process_without_cublaslt_says_nothing(self, tmp_path: Path, setting: str) -> None:
        rig = run(tmp_path, "show(1)", cublaslt=setting)
        assert rig.ledgers() == []
        assert rig.map_files() == []

    def test_auto_without_torch_is_named(self, tmp_path: Path) -> None:
        (text,) = bypasses(run(tmp_path, self.CODE, cublaslt="auto"))
        assert "Say --cublaslt on" in text

    def test_auto_with_a_lock_that_does_not_hold_it(self, tmp_path: Path) -> None:
        """Routing changes bits: an enforced run sends nothing where the recorded run did not."""
        rig = Rig(tmp_path, cublaslt="auto")
        rig.enforce({})
        rig.calls(self.CODE)
        (line,) = rig.lines("setting")
        assert (line["held"], line["value"]) == ("no", "off")
        assert "record again" in line["text"]


NO_OTHERS = (
    "import sys\nimport pinner.inside.choosers.others.registry as others\n"
    "others.install = lambda: None\n"
)
"""A torch of a few lines has none of what the other choosers look at."""

TORCH = """
import ctypes, json, sys, types
from pathlib import Path

__version__ = "2.13.0+test"
version = types.SimpleNamespace(cuda={cuda!r})
variable = ctypes.CDLL(None).getenv
variable.restype = ctypes.c_char_p
by_variable = {reads!r} and variable(b"TORCH_BLAS_PREFER_CUBLASLT") == b"1"
chosen = ["_BlasBackend.Cublaslt" if by_variable else "_BlasBackend.Cublas"]


def preferred(name=None):
    if name is not None:
        print("an experimental feature", file=sys.stderr)
        chosen[:] = ["_BlasBackend." + name.capitalize()]
    return chosen[0]


backends = types.SimpleNamespace(cuda=types.SimpleNamespace(preferred_blas_library=preferred))
sys.path.insert(0, {calls!r})
import cublaslt_calls
consumer = cublaslt_calls.load()
"""


class TestWithTorch:
    """A module named torch, in whose folder lies what a CUDA build has."""

    def torch(self, folder: Path, cuda: str | None = "13.0", reads: bool = True) -> str:
        lib = folder / "site" / "torch" / "lib"
        lib.mkdir(parents=True)
        if cuda:
            (lib / "libtorch_cuda.so").touch()
        calls = str(Path(__file__).resolve().parents[1] / "fakes")
        text = TORCH.format(cuda=cuda, reads=reads, calls=calls)
        (lib.parent / "__init__.py").write_text(text)
        return NO_OTHERS + f"sys.path.insert(0, {str(folder / 'site')!r})\nimport torch\n"

    def test_auto_watches_a_cuda_build(self, tmp_path: Path) -> None:
        code = self.torch(tmp_path) + "show(gemm(torch.consumer), torch.chosen)"
        rig = Rig(tmp_path / "session", cublaslt="auto")
        ((_, chosen),) = rig.calls(code)
        assert chosen == ["_BlasBackend.Cublaslt"]
        assert len(rig.choices()) == 1
        assert rig.problems() == {}
        assert {(line["name"], line["value"], line["held"]) for line in rig.lines("setting")} >= {
            ("interposer", "on", "set"),
            ("preferred_blas_library", "cublaslt", "set"),
        }

    @pytest.mark.parametrize("reads", [True, False])
    def test_torch_is_routed_by_its_variable_or_by_a_call(
        self, tmp_path: Path, reads: bool
    ) -> None:
        """The variable needs no call, which prints a warning; it is no fact of the stack, and
        children do not inherit it."""
        left = "torch.variable(b'TORCH_BLAS_PREFER_CUBLASLT')"
        code = self.torch(tmp_path, reads=reads) + f"show(torch.chosen, {left})"
        rig = Rig(tmp_path / "session", cublaslt="auto")
        done = rig.program(code)
        assert json.loads(done.stdout) == [["_BlasBackend.Cublaslt"], None]
        facts = [line["facts"] for line in rig.lines("facts")]
        assert facts
        assert not any("env:TORCH_BLAS_PREFER_CUBLASLT" in each for each in facts)
        assert ("experimental" in done.stderr) is not reads

    def test_an_enforced_run_routes_as_the_recorded_one_did(self, tmp_path: Path) -> None:
        code = self.torch(tmp_path) + "show(gemm(torch.consumer), torch.chosen)"
        rig = Rig(tmp_path / "session", cublaslt="auto")
        rig.enforce({"policy": {"cublaslt.interposer": "on"}})
        ((_, chosen),) = rig.calls(code)
        assert chosen == ["_BlasBackend.Cublaslt"]
        assert [line["how"] for line in rig.choices()] == ["fallback"]

    def test_an_enforced_run_does_not_route_where_the_recorded_one_did_not(
        self, tmp_path: Path
    ) -> None:
        code = self.torch(tmp_path) + "show(gemm(torch.consumer), torch.chosen)"
        rig = Rig(tmp_path / "session", cublaslt="auto")
        rig.enforce({})
        ((_, chosen),) = rig.calls(code)
        assert chosen == ["_BlasBackend.Cublas"]
        assert rig.map_files() == []
        assert [line["held"] for line in rig.lines("setting")] == ["no"]

    def test_auto_leaves_a_cpu_build_alone(self, tmp_path: Path) -> None:
        code = self.torch(tmp_path, cuda=None) + "show(torch.chosen)"
        rig = Rig(tmp_path / "session", cublaslt="auto")
        assert rig.calls(code) == [[["_BlasBackend.Cublas"]]]
        assert rig.map_files() == []

    def test_a_program_that_routes_elsewhere_is_named(self, tmp_path: Path) -> None:
        code = self.torch(tmp_path) + "torch.chosen[:] = ['_BlasBackend.Ck']\nshow(1)"
        rig = Rig(tmp_path / "session", cublaslt="auto")
        rig.calls(code)
        assert any("chose _BlasBackend.Ck for PyTorch's GEMMs" in text for text in bypasses(rig))

    def test_without_a_compiler_a_recording_has_a_hole(self, tmp_path: Path) -> None:
        code = self.torch(tmp_path) + "show(1)"
        rig = Rig(tmp_path / "session", cublaslt="auto")
        environ = {"PINNER_CUBLASLT_LIBRARY": "", "CC": "no-such-compiler"}
        done = rig.program(code, PINNER_CACHE_DIR=str(tmp_path / "cache"), **environ)
        assert done.returncode == 0
        assert "expected a C compiler" in done.stderr
        assert "expected a C compiler" in bypasses(rig)[0]

    @pytest.mark.parametrize("mode", ["on", "locked"])
    def test_without_a_compiler_what_needs_it_does_not_start(
        self, tmp_path: Path, mode: str
    ) -> None:
        rig = Rig(tmp_path / "session", cublaslt="on" if mode == "on" else "auto")
        if mode == "locked":
            rig.enforce({"cublaslt": [{"problem": {"cublaslt": 130200}, "algo": {}, "blob": ""}]})
        environ = {"PINNER_CUBLASLT_LIBRARY": "", "CC": "no-such-compiler"}
        code = self.torch(tmp_path) + "show(1)"
        done = rig.program(code, PINNER_CACHE_DIR=str(tmp_path / "cache"), **environ)
        assert done.returncode == 96
        assert "expected a C compiler" in done.stderr
        assert done.stdout == ""
