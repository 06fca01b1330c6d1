"""A captured operation, rendered and run alone, gets what it got inside of the program, to the bit.

What the operation is given in repro.py is taken from the dispatcher and held against what the
program gave it: dtype, shape, strides, bytes, alignment, and which arguments share memory.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinner.inside.evidence.trace import capture as inside
from pinner.inside.evidence.trace import capture_ops
from stackbisect.repro import captured as reading
from stackbisect.repro import read_torch
from stackbisect.repro.calls import Program
from stackbisect.repro.capture import Made
from stackbisect.repro.captured import Captured
from stackbisect.repro.extract import NoCase
from stackbisect.repro.form import SCRIPT
from tests.trace_rig import recording

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

Make = Callable[[], Any]


def event(name: str, nth: int = 0, **more: Any) -> dict[str, Any]:
    """The event whose call is captured."""
    place = {"module": "", "phase": "f", "step": 0, "rank": None}
    return {"kind": "op", "name": name, "nth": nth, **place, **more}


def captured(folder: Path, name: str, run: Make, **more: Any) -> Captured | NoCase:
    """What is captured of an operation while `run` runs."""
    with recording(folder / "trace") as traced:
        traced.recorder.awaited = inside.Awaited(event(name, **more), str(folder))
        run()
    return reading.read(folder, name)


def made(folder: Path, name: str, run: Make, **more: Any) -> Made:
    """The program of what is captured."""
    found = captured(folder, name, run, **more)
    assert isinstance(found, Captured), found
    program = read_torch.program(found)
    assert isinstance(program, Made), program
    return program


def loaded(program: Program, folder: Path) -> dict[str, Any]:
    """repro.py as a module, beside its files."""
    folder.mkdir(exist_ok=True)
    for name, data in program.files().items():
        (folder / name).write_bytes(data)
    text = (folder / SCRIPT).read_text()
    names: dict[str, Any] = {"__name__": "repro", "__file__": str(folder / SCRIPT)}
    exec(compile(text, SCRIPT, "exec"), names)
    return names


class Given(TorchDispatchMode):  # type: ignore[misc]
    """Describes what an operation is given."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.seen: list[Any] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if str(function) == self.name:
            self.seen.append(described((args, kwargs or {})))
        return function(*args, **(kwargs or {}))


def described(given: Any) -> list[Any]:
    """All that a call may depend on: values, and for tensors their bytes, layout and places."""
    tensors: list[Any] = []
    return list(_described(given, tensors))


def _described(value: Any, tensors: list[Any]) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield tensor_described(value, tensors)
        tensors.append(value)
    elif isinstance(value, (list, tuple)):
        yield type(value).__name__.replace("immutable_list", "list")
        for each in value:
            yield from _described(each, tensors)
    elif isinstance(value, dict):
        yield sorted(value)
        for name in sorted(value):
            yield from _described(value[name], tensors)
    elif isinstance(value, torch.Generator):
        yield value.get_state().tolist()
    else:
        yield type(value), repr(value)


def tensor_described(value: Any, before: list[Any]) -> Any:
    address = value.data_ptr()
    storage = value.untyped_storage().data_ptr()
    shared = [
        (at, address - each.data_ptr())
        for at, each in enumerate(before)
        if value.numel() and each.untyped_storage().data_ptr() == storage
    ]
    return {
        "dtype": value.dtype,
        "shape": tuple(value.shape),
        "strides": tuple(value.stride()) if value.numel() else None,
        "late": (value.is_conj(), value.is_neg()),
        "bytes": raw(value),
        "aligned": min(address & -address, 64) if value.numel() else None,
        "shared": shared,
    }


def raw(value: Any) -> bytes:
    """Its bytes in C order."""
    flat = value.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return bytes(flat.reshape(-1).view(torch.uint8).tolist())


def numbers(*shape: int, dtype: Any = None) -> Any:
    """Numbers that no line of a program makes."""
    count = 1
    for size in shape:
        count *= size
    found = torch.arange(count, dtype=torch.float64).mul_(0.37).sin_().reshape(shape)
    return found.to(dtype or torch.float32)


def odd() -> Any:
    """What numbers alone do not say: NaN with a payload, -0, the smallest ones, infinities."""
    words = [0x7FC12345, -0x80000000, 1, 0x7F800000, -0x800000, 0x3F800000, 0x00400000]
    return torch.tensor(words, dtype=torch.int32).view(torch.float32)


def overlapping() -> tuple[Any, Any]:
    whole = numbers(9)
    return whole[1:], whole[:-1]


def float_and_its_words() -> Any:
    whole = numbers(8)
    return torch.ops.aten.add.Tensor(whole.view(torch.int32)[2:], whole[1:-1])


def batch_norm() -> Any:
    x, mean, var = numbers(3, 4, 5), torch.zeros(4), torch.ones(4)
    weight, bias = numbers(4), numbers(4).exp2()
    return torch.ops.aten._native_batch_norm_legit.default(
        x, weight, bias, mean, var, True, 0.1, 1e-5
    )


def twice(x: Any) -> Any:
    return x * x


def conjugate_times(z: Any) -> Any:
    return z.conj() @ z


def around(x: Any) -> Any:
    return torch.cat([x, numbers(2, 3), x])


def in_a_fresh_place() -> Any:
    return torch.add(numbers(5), 1, out=torch.empty(5))


def generator() -> Any:
    draw = torch.Generator().manual_seed(5)
    torch.randn(3, generator=draw)
    return torch.randn(4, generator=draw)


CALLS: dict[str, tuple[str, Make]] = {
    "contiguous": ("aten.mul.Tensor", lambda: numbers(3, 4) * numbers(4)),
    "transposed": ("aten.mm.default", lambda: numbers(5, 3).t() @ numbers(4, 5).t()),
    "gaps": ("aten.sin.default", lambda: torch.sin(numbers(6, 7)[::2, 1::3])),
    "expanded": ("aten.add.Tensor", lambda: numbers(4, 1).expand(4, 3) + numbers(4, 3)),
    "overlapping": ("aten.add.Tensor", lambda: torch.add(*overlapping())),
    "twice the same": ("aten.mul.Tensor", lambda: twice(numbers(7))),
    "two dtypes in one memory": ("aten.add.Tensor", float_and_its_words),
    "misaligned": ("aten.exp.default", lambda: torch.exp(numbers(100)[1:98])),
    "aligned to 16": ("aten.exp.default", lambda: torch.exp(numbers(100)[4:98])),
    "bfloat16": ("aten.mm.default", lambda: numbers(9, 8, dtype=torch.bfloat16) @ (
        numbers(8, 9, dtype=torch.bfloat16))),
    "float16": ("aten.exp.default", lambda: numbers(70, dtype=torch.float16).exp()),
    "float8": ("aten._to_copy.default", lambda: numbers(5).to(torch.float8_e4m3fn).float()),
    "float64 scalar": ("aten.add.Tensor", lambda: torch.tensor(0.1, dtype=torch.float64) + 1.5),
    "complex": ("aten.mul.Tensor", lambda: torch.complex(numbers(4), numbers(4)) * (1 + 2j)),
    "conjugated": ("aten.mm.default", lambda: conjugate_times(
        torch.complex(numbers(3, 3), numbers(3, 3)))),
    "odd": ("aten.neg.default", lambda: odd().neg()),
    "integers": ("aten.bitwise_and.Tensor", lambda: torch.arange(-4, 90) & torch.tensor(77)),
    "bool": ("aten.where.self", lambda: torch.where(numbers(6) > 0, numbers(6), odd()[1])),
    "in place": ("aten.add_.Tensor", lambda: numbers(6).add_(numbers(6), alpha=3)),
    "in place, a row": ("aten.mul_.Tensor", lambda: numbers(4, 5)[2].mul_(numbers(5))),
    "out": ("aten.add.out", lambda: torch.add(numbers(5), 1, out=numbers(9)[2:7])),
    "a list": ("aten.cat.default", lambda: around(numbers(4, 3))),
    "lists in place": ("aten._foreach_add_.List", lambda: torch._foreach_add_(
        [numbers(3), numbers(2, 2)], [numbers(3), odd()[:4].reshape(2, 2)], alpha=0.5)),
    "none in a list": ("aten.index.Tensor", lambda: numbers(4, 5)[:, torch.tensor([3, 1])]),
    "several results": ("aten.native_layer_norm.default", lambda: torch.native_layer_norm(
        numbers(6, 16), [16], numbers(16), None, 1e-5)),
    "results and arguments": ("aten._native_batch_norm_legit.default", batch_norm),
    "a list of results": ("aten._foreach_exp.default", lambda: torch._foreach_exp(
        [numbers(3), numbers(2)])),
    "empty": ("aten.cat.default", lambda: torch.cat([torch.empty(0, 3), numbers(2, 3)])),
    "dtype": ("aten.sum.dim_IntList", lambda: numbers(30, 5).sum(0, dtype=torch.float64)),
    "infinite": ("aten.clamp.default", lambda: numbers(5).clamp(-float("inf"), 0.25)),
    "a generator": ("aten.randn.generator", generator),
    "permuted": ("aten.convolution.default", lambda: torch.conv2d(
        numbers(2, 3, 5, 5).to(memory_format=torch.channels_last), numbers(4, 3, 3, 3))),
}  # fmt: skip


@pytest.mark.parametrize("which", CALLS)
def test_alone_an_operation_gets_and_gives_what_it_did_in_the_program(
    which: str, tmp_path: Path
) -> None:
    name, run = CALLS[which]
    with Given(name) as before:
        run()
    program = Given(name)

    def seen() -> None:
        with program:
            run()

    found = made(tmp_path, name, seen, nth=len(before.seen) - 1)
    repro = loaded(found.program, tmp_path / "repro")
    with Given(name) as alone:
        outputs = repro["outputs"]()
    assert alone.seen == program.seen[-1:]
    assert {name: repro["digest"](each) for name, each in outputs.items()} == found.expected
    assert found.program.kind == "aten"


@pytest.mark.parametrize("drawn", [False, True])
def test_the_generators_state_is_an_input_of_what_draws(drawn: bool, tmp_path: Path) -> None:
    def draw() -> None:
        torch.manual_seed(11)
        if drawn:
            torch.rand(7)
        torch.bernoulli(numbers(50).abs())

    found = made(tmp_path, "aten.bernoulli.default", draw, random=True)
    assert found.program.seed == (None if drawn else 11)
    repro = loaded(found.program, tmp_path / "repro")
    torch.manual_seed(3)
    assert repro["digest"](repro["outputs"]()["out"]) == found.expected["out"]


def test_an_overload_whose_name_is_a_keyword_is_called(tmp_path: Path) -> None:
    def draw() -> None:
        torch.manual_seed(11)
        torch.zeros(50).random_(2, 90)

    found = made(tmp_path, "aten.random_.from", draw, random=True)
    repro = loaded(found.program, tmp_path / "repro")
    torch.manual_seed(3)
    outputs = repro["outputs"]()
    assert {name: repro["digest"](each) for name, each in outputs.items()} == found.expected


def test_inputs_that_a_line_makes_need_no_file(tmp_path: Path) -> None:
    def run() -> None:
        x = torch.arange(4000, dtype=torch.float32).reshape(40, 100)
        torch.addmm(torch.zeros(40, 60), x, torch.ones(100, 60))

    found = made(tmp_path, "aten.addmm.default", run)
    files = found.program.files()
    assert set(files) == {SCRIPT}
    text = files[SCRIPT].decode()
    assert "torch.zeros((40, 60), dtype=torch.float32)" in text
    assert "torch.arange(4000, dtype=torch.float32).reshape((40, 100))" in text
    assert "torch.ones((100, 60), dtype=torch.float32)" in text


def test_a_program_imports_torch_and_the_standard_library_alone(tmp_path: Path) -> None:
    found = made(tmp_path, "aten.mm.default", lambda: numbers(30, 40) @ numbers(40, 9))
    tree = ast.parse(found.program.files()[SCRIPT])
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert names - {"torch"} <= set(sys.stdlib_module_names)
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))


def test_memory_that_nobody_wrote_is_zeros(tmp_path: Path) -> None:
    found = made(tmp_path, "aten.add.out", in_a_fresh_place)
    assert not any(found.program.inputs["out"].data)
    assert found.program.outputs == ("out",)


def test_what_the_program_set_is_set_and_what_it_left_alone_is_not(tmp_path: Path) -> None:
    before = torch.backends.cudnn.benchmark
    run = lambda: numbers(3) + 1
    plain = made(tmp_path / "plain", "aten.add.Tensor", run)
    assert set(plain.program.settings) - {n for n in plain.program.settings if n[0] == "$"} == {
        "threads"
    }
    torch.backends.cudnn.benchmark = not before
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        found = made(tmp_path / "set", "aten.add.Tensor", run)
    finally:
        torch.backends.cudnn.benchmark = before
        torch.use_deterministic_algorithms(False)
    text = found.program.files()[SCRIPT].decode()
    assert f"torch.backends.cudnn.benchmark = {not before}\n" in text
    assert "torch.use_deterministic_algorithms(True, warn_only=True)\n" in text


def settings_after(code: str) -> tuple[dict[str, Any], str]:
    """What is captured of the settings after some code, and a program that sets them; in a fork."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with os.fdopen(write, "w") as out:
            exec(code, {"torch": torch, "__name__": "repro"})
            seen = inside.settings(torch)
            settings = read_torch.settings(Captured("torch", "", {}, (), (), seen, {}, (), {}))
            program = Program("aten", "aten.add.Tensor", {}, (), (), settings=settings)
            out.write(json.dumps([seen, program.files()[SCRIPT].decode()]))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as source:
        text = source.read()
    assert os.waitpid(pid, 0)[1] == 0
    seen, program = json.loads(text)
    return seen, program


@pytest.mark.parametrize(
    "code",
    [
        "torch.set_float32_matmul_precision('medium')",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.cudnn.allow_tf32 = False",
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
        "torch.backends.fp32_precision = 'ieee'",
        "torch.set_flush_denormal(True); torch.set_default_dtype(torch.float64)",
        "torch.use_deterministic_algorithms(True)",
    ],
)
def test_settings_in_old_and_new_names_are_set_again_as_they_were(code: str) -> None:
    seen, program = settings_after(code)
    assert seen != settings_after("pass")[0]
    assert settings_after(f"{program}\noutputs()")[0] == seen


# -- what cannot be written down -------------------------------------------------------------------


def sparse() -> Any:
    return torch.eye(3).to_sparse().to_dense()


def quantised() -> Any:
    return torch.quantize_per_tensor(numbers(4), 0.1, 0, torch.qint8).dequantize()


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions:UserWarning")
@pytest.mark.parametrize(
    ("name", "run", "said"),
    [
        ("aten._to_dense.default", sparse, "its layout is torch.sparse_coo"),
        ("aten.dequantize.self", quantised, "it is quantised"),
    ],
)
def test_what_cannot_be_written_down_says_why(
    name: str, run: Make, said: str, tmp_path: Path
) -> None:
    found = captured(tmp_path, name, run)
    assert isinstance(found, NoCase)
    assert "cannot be captured" in found.text
    assert said in found.text


@pytest.mark.parametrize("imported", ["loaded by torch", "an extension module"])
def test_a_shared_library_with_the_operations_schema_names_its_package(
    imported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "vision_kernels"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    library = package / "lib" / "_C.so"
    library.write_bytes(b"\x7fELF...roi_pool(Tensor input) -> Tensor\0...")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "vision_kernels", importlib.import_module("vision_kernels"))
    if imported == "loaded by torch":
        monkeypatch.setattr(torch.ops, "loaded_libraries", {str(library)})
    else:
        loaded = types.ModuleType("vision_kernels.lib._C")
        loaded.__file__ = str(library)
        monkeypatch.setitem(sys.modules, "vision_kernels.lib._C", loaded)
    pool = types.SimpleNamespace(name="vision_kernels_ops::roi_pool", overload_name="")
    align = types.SimpleNamespace(name="vision_kernels_ops::roi_align", overload_name="")
    assert capture_ops.registered(torch, pool)["module"] == "vision_kernels"
    assert capture_ops.registered(torch, align)["module"] is None


def test_a_call_that_does_not_come_is_no_call(tmp_path: Path) -> None:
    found = captured(tmp_path, "aten.mm.default", lambda: numbers(3) + 1)
    assert isinstance(found, NoCase)
    assert "did not come again" in found.text


def test_the_nth_call_of_a_name_is_meant(tmp_path: Path) -> None:
    def run() -> None:
        for at in range(4):
            torch.full((2,), 3.5).add_(at)

    found = made(tmp_path, "aten.add_.Tensor", run, nth=2)
    assert found.program.steps[0].args[1] == 2


@pytest.mark.parametrize("more", [{"step": 1}, {"phase": "b"}, {"module": "a"}, {"rank": 0}])
def test_a_call_at_another_place_is_not_meant(more: dict[str, Any], tmp_path: Path) -> None:
    found = captured(tmp_path, "aten.add.Tensor", lambda: numbers(3) + 1, **more)
    assert isinstance(found, NoCase)


def test_two_calls_that_were_captured_are_refused(tmp_path: Path) -> None:
    made(tmp_path, "aten.add.Tensor", lambda: numbers(3) + 1)
    found = captured(tmp_path, "aten.add.Tensor", lambda: numbers(3) + 1)
    assert isinstance(found, NoCase)
    assert "2 processes" in found.text


def test_a_piece_that_was_damaged_on_its_way_is_refused(tmp_path: Path) -> None:
    made(tmp_path, "aten.mm.default", lambda: numbers(30, 40) @ numbers(40, 9))
    (piece,) = tmp_path.glob("capture/*/1.bin")
    data = bytearray(piece.read_bytes())
    data[7] ^= 1
    piece.write_bytes(data)
    found = reading.read(tmp_path, "aten.mm.default")
    assert isinstance(found, NoCase)
    assert "damaged: 1.bin" in found.text


def test_a_corrupted_byte_is_seen_in_what_the_call_gives(tmp_path: Path) -> None:
    found = made(tmp_path, "aten.mm.default", lambda: numbers(30, 40) @ numbers(40, 9))
    one = found.program.inputs["input"]
    data = bytearray(one.data)
    data[6] ^= 1
    planted = found.program.with_inputs(input=replace(one, data=bytes(data)))
    repro = loaded(planted, tmp_path / "repro")
    assert repro["digest"](repro["outputs"]()["out"]) != found.expected["out"]


# -- operations before it --------------------------------------------------------------------------


def steps_before(folder: Path, run: Make, name: str, count: int, **more: Any) -> Made | NoCase:
    """The program of a call and `count` operations before it."""
    found = captured(folder, name, run, before=8, **more)
    assert isinstance(found, Captured), found
    return read_torch.window(found, count)


def chain() -> None:
    x = numbers(4, 6)
    y = x.t()[1:]
    y.mul_(2.0)
    parts = torch.split(y, 2)
    z = torch.cat([parts[0], x.t()[:2]]) @ x
    torch.add(z, z.conj(), alpha=2)


CHAIN = ["t", "slice", "mul_", "split", "t", "slice", "cat", "mm", "add"]


@pytest.mark.parametrize("count", range(9))
def test_operations_before_a_call_feed_it(count: int, tmp_path: Path) -> None:
    with Given("aten.add.Tensor") as program:
        chain()
    found = steps_before(tmp_path, chain, "aten.add.Tensor", count)
    assert isinstance(found, Made), found
    targets = [step.target.split(".")[1] for step in found.program.steps]
    assert targets == CHAIN[-1 - count :]
    repro = loaded(found.program, tmp_path / "repro")
    with Given("aten.add.Tensor") as alone:
        outputs = repro["outputs"]()
    assert alone.seen == program.seen
    assert {name: repro["digest"](each) for name, each in outputs.items()} == found.expected


def test_what_draws_begins_the_operations_before_a_call_anew(tmp_path: Path) -> None:
    def run() -> None:
        x = numbers(4).sin() + torch.rand(4)
        (x * 2).exp()

    found = steps_before(tmp_path, run, "aten.exp.default", 8)
    assert isinstance(found, Made), found
    assert [step.target for step in found.program.steps] == [
        "aten.add.Tensor",
        "aten.mul.Tensor",
        "aten.exp.default",
    ]
