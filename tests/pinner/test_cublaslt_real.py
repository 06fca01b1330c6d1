"""Holds the stand-in, and all that we wrote down about cuBLASLt, to the real library.

PINNER_TEST_CUBLASLT names its file, or several with colons between (the wheels `nvidia-cublas` and
`nvidia-cublas-cu12` hold it; it loads without a GPU); without the variable an installed wheel is
looked for. The facts were taken from 13.1.2 and 12.8.5.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pinner.inside.choosers.cublaslt import build, fields, layout
from tests import lanes
from tests.fakes.cublaslt_stand_in import Rig, built

NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
NOT_INITIALIZED, INVALID_VALUE, NOT_SUPPORTED = 1, 7, 15
COMPUTE_32F, R_32F = 68, 0
CONSUMERS = {13: "consumer", 12: "consumer12"}
# Attributes of the key that a version does not have: it gives them their defaults.
SYNC = {27, 28, 29, 30}
ABSENT: dict[tuple[int, str], set[int]] = {(13, "MatmulDesc"): SYNC}


def real_paths() -> list[Path]:
    named = os.environ.get(lanes.CUBLASLT)
    if named:
        return [Path(each) for each in named.split(":")]
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return [path for each in folders for name in NAMES for path in Path(each).rglob(name)]


@pytest.fixture(
    name="path", scope="module", params=real_paths() or [None], ids=lambda p: p and p.name
)
def _path(request: pytest.FixtureRequest) -> Path:
    if request.param is None:
        pytest.skip(f"needs {NAMES[0]} ({lanes.CUBLASLT}, or the wheel nvidia-cublas)")
    return Path(request.param)


@pytest.fixture(name="major", scope="module")
def _major(path: Path) -> int:
    return int(path.name.rpartition(".")[2])


@pytest.fixture(name="real", scope="module")
def _real(path: Path) -> Any:
    return ctypes.CDLL(str(path), mode=os.RTLD_LAZY)


@pytest.fixture(name="stand_in", scope="module")
def _stand_in(path: Path) -> Any:
    return ctypes.CDLL(str(built() / path.name), mode=os.RTLD_LAZY)


def exported(path: Path) -> set[str]:
    """Names with their versions, such as "cublasLtMatmul@@libcublasLt.so.13"."""
    done = subprocess.run(["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True)
    return {line.split()[-1] for line in done.stdout.splitlines()}


# Each kind of object: (its prefix, its attributes in the key, what makes one).
OBJECTS: dict[str, tuple[list[Any], Callable[[Any, Any], int]]] = {
    "MatmulDesc": (
        layout.DESC + layout.POINTERS,
        lambda library, out: library.cublasLtMatmulDescCreate(out, COMPUTE_32F, R_32F),
    ),
    "MatrixLayout": (
        layout._matrix("a"),
        lambda library, out: library.cublasLtMatrixLayoutCreate(
            out, R_32F, ctypes.c_uint64(0), ctypes.c_uint64(0), ctypes.c_int64(0)
        ),
    ),
    "MatmulPreference": (
        layout.PREFERENCE,
        lambda library, out: library.cublasLtMatmulPreferenceCreate(out),
    ),
    "EmulationDesc": (
        layout.EMULATION,
        lambda library, out: library.cublasLtEmulationDescCreate(out),
    ),
}
SET_WHEN_MADE = {"compute": COMPUTE_32F}


def rows_of(major: int, kind: str) -> list[Any]:
    """The attributes of the key that this version has."""
    absent = ABSENT.get((major, kind), set())
    return [row for row in OBJECTS[kind][0] if row[1] not in absent]


def made(library: Any, kind: str) -> Any:
    if not hasattr(library, f"cublasLt{kind}Create"):
        pytest.skip(f"this version has no {kind}")
    pointer = ctypes.c_void_p()
    assert OBJECTS[kind][1](library, ctypes.byref(pointer)) == 0
    return pointer


def size_of(library: Any, kind: str, thing: Any, attribute: int) -> int | None:
    """How many bytes the library says an attribute has; None where it has no such attribute."""
    written = ctypes.c_size_t(0)
    get = getattr(library, f"cublasLt{kind}GetAttribute")
    status = get(thing, attribute, None, ctypes.c_size_t(0), ctypes.byref(written))
    return written.value if status == 0 else None


def value_of(library: Any, kind: str, thing: Any, attribute: int, size: int) -> int:
    types = {1: ctypes.c_int8, 4: ctypes.c_int32, 8: ctypes.c_int64}
    value, written = types[size](), ctypes.c_size_t(0)
    get = getattr(library, f"cublasLt{kind}GetAttribute")
    given = (ctypes.byref(value), ctypes.c_size_t(size), ctypes.byref(written))
    assert get(thing, attribute, *given) == 0
    return int(value.value)


class TestFacts:
    def test_the_major_version_is_that_of_the_name(self, real: Any, major: int) -> None:
        real.cublasLtGetVersion.restype = ctypes.c_size_t
        assert real.cublasLtGetVersion() // 10000 == major

    @pytest.mark.parametrize("kind", OBJECTS)
    def test_each_attribute_has_our_size_and_default(
        self, real: Any, major: int, kind: str
    ) -> None:
        thing = made(real, kind)
        for name, attribute, size, default in rows_of(major, kind):
            assert (name, size_of(real, kind, thing, attribute)) == (name, size)
            found = value_of(real, kind, thing, attribute, size)
            assert (name, found) == (name, SET_WHEN_MADE.get(name, default))

    def test_the_number_of_an_algorithm_is_read_only(self, real: Any) -> None:
        """So a rebuilt algorithm starts with AlgoInit."""
        algo, value = layout.Algo(), ctypes.c_uint32(3)
        given = (ctypes.byref(algo), 0, ctypes.byref(value), ctypes.c_size_t(4))
        assert real.cublasLtMatmulAlgoConfigSetAttribute(*given) == INVALID_VALUE

    def test_a_blob_is_decoded_in_full(self, real: Any) -> None:
        algo = layout.Algo()
        wanted = dict(zip(layout.ALGO_NAMES, range(10), strict=True))
        for name, attribute, size, _ in layout.ALGO[1:]:
            value = ctypes.c_uint32(wanted[name])
            given = (attribute, ctypes.byref(value), ctypes.c_size_t(size))
            assert real.cublasLtMatmulAlgoConfigSetAttribute(ctypes.byref(algo), *given) == 0
        assert fields.decode(bytes(algo), real) == wanted

    def test_there_is_no_field_that_we_do_not_know(self, real: Any) -> None:
        """Were there one, a rebuilt algorithm would lack it."""
        algo, written = layout.Algo(), ctypes.c_size_t(0)
        get = real.cublasLtMatmulAlgoConfigGetAttribute
        found = [
            number
            for number in range(64)
            if get(ctypes.byref(algo), number, None, ctypes.c_size_t(0), ctypes.byref(written)) == 0
        ]
        assert found == [field[1] for field in layout.ALGO]

    @pytest.mark.parametrize(
        ("kind", "apart"),
        [
            ("MatmulDesc", {8, 11, 38}),  # bias and aux pointers by alignment; emulation by content
            ("MatrixLayout", set()),
            ("MatmulPreference", set()),
            ("EmulationDesc", {5}),  # where the number of bits is written to
        ],
    )
    def test_there_is_no_attribute_that_the_key_leaves_out(
        self, real: Any, major: int, kind: str, apart: set[int]
    ) -> None:
        thing = made(real, kind)
        found = {number for number in range(64) if size_of(real, kind, thing, number) is not None}
        expected = {row[1] for row in rows_of(major, kind)} | apart
        assert found == expected - ({38} if major == 12 else set())


@pytest.mark.parametrize("kind", ["MatrixLayout", "MatmulPreference"])
class TestSmallObjects:
    """What was read of eight words is not asked for again: they must hold the whole content."""

    def test_each_attribute_changes_the_words(self, real: Any, kind: str) -> None:
        thing = made(real, kind)
        set_attribute = getattr(real, f"cublasLt{kind}SetAttribute")
        for name, attribute, size, _ in OBJECTS[kind][0]:
            before = ctypes.string_at(thing, 64)
            value = ctypes.c_int64(value_of(real, kind, thing, attribute, size) ^ 1)
            given = (attribute, ctypes.byref(value), ctypes.c_size_t(size))
            assert set_attribute(thing, *given) == 0, name
            assert ctypes.string_at(thing, 64) != before, name

    def test_a_copy_of_the_words_says_the_same(self, real: Any, kind: str) -> None:
        thing, value = made(real, kind), ctypes.c_int64(1)
        _, attribute, size, _ = OBJECTS[kind][0][1]
        given = (attribute, ctypes.byref(value), ctypes.c_size_t(size))
        assert getattr(real, f"cublasLt{kind}SetAttribute")(thing, *given) == 0
        copy = ctypes.create_string_buffer(ctypes.string_at(thing, 64), 64)
        for _, attribute, size, _ in OBJECTS[kind][0]:
            expected = value_of(real, kind, thing, attribute, size)
            assert value_of(real, kind, ctypes.byref(copy), attribute, size) == expected


class TestStandIn:
    def test_the_real_library_exports_what_it_exports(self, path: Path) -> None:
        ours = {name for name in exported(built() / path.name) if name.startswith("cublasLt")}
        assert len(ours) > 20
        assert ours <= exported(path), "the same names under the same version"

    def test_the_real_libcublas_exports_what_is_counted(self, path: Path) -> None:
        cublas = path.with_name(path.name.replace("Lt", ""))
        there = {name.split("@")[0] for name in exported(cublas)}
        text = (Path(build.source_folder()) / "legacy.c").read_text()
        names = re.findall(r"BOTH\(W, \w+, (cublas\w+)\)", text)
        assert {name + end for name in names for end in ("", "_64")} <= there

    @pytest.mark.parametrize("kind", OBJECTS)
    def test_its_attributes_are_the_real_ones(
        self, real: Any, stand_in: Any, major: int, kind: str
    ) -> None:
        there, here = made(real, kind), made(stand_in, kind)
        found = {}
        for attribute in range(64):
            size = size_of(stand_in, kind, here, attribute)
            if size is None:
                continue
            assert size_of(real, kind, there, attribute) == size
            found[attribute] = value_of(stand_in, kind, here, attribute, size)
            assert value_of(real, kind, there, attribute, size) == found[attribute]
        assert {row[1] for row in rows_of(major, kind)} <= set(found)

    def test_calls_that_need_a_gpu_say_so(self, real: Any) -> None:
        """What this machine's lack of a GPU leaves untested against the real one."""
        handle = ctypes.c_void_p()
        if real.cublasLtCreate(ctypes.byref(handle)) == 0:
            pytest.skip("a GPU is here")
        algo = layout.Algo()
        status = real.cublasLtMatmulAlgoInit(handle, 68, 0, 0, 0, 0, 0, 21, ctypes.byref(algo))
        assert status in (NOT_INITIALIZED, NOT_SUPPORTED)


class TestInFront:
    def test_the_key_of_a_question_is_the_same_with_both(
        self, path: Path, major: int, tmp_path: Path
    ) -> None:
        """The real library has no GPU here and refuses; what was asked is read all the same."""
        if major < 13:
            pytest.skip("12.8 ends with a segmentation fault where no GPU gave a handle")
        code = f"l = load({CONSUMERS[major]!r})\n"
        code += "show(gemm(l, m=3, n=5, k=7, transa=1, align=16, bias=0x1230))"
        keys = []
        for name, folder in (("real", str(path.parent)), ("stand-in", str(built()))):
            rig = Rig(tmp_path / name)
            ((shown,),) = rig.calls(code, LD_LIBRARY_PATH=folder)
            (line,) = rig.mapped()[1:]
            keys.append(dict(line["key"]))
            if name == "real" and shown["ask"]:
                assert line["kind"] == "refused"
                assert "CUBLAS_STATUS_" in line["text"]
        versions = [key.pop("cublaslt") for key in keys]
        assert versions[0] // 10000 == versions[1] // 10000 == major
        assert keys[0] == keys[1]

    def test_its_own_references_are_seen(self, path: Path, major: int, tmp_path: Path) -> None:
        cublas = path.name.replace("Lt", "")
        code = (
            "import pinner.inside.choosers.cublaslt.chooser as chooser\n"
            f"load({CONSUMERS[major]!r})\n"
            "show(*chooser.consumers(chooser._chooser.library))"
        )
        (rows,) = Rig(tmp_path).calls(code, LD_LIBRARY_PATH=str(path.parent))
        found = {(state, symbol, os.path.basename(file)) for state, symbol, file in rows}
        assert ("ours", "cublasLtMatmul", f"lib{CONSUMERS[major]}.so") in found
        real_cublas = {row[0] for row in found if row[2] == cublas}
        assert real_cublas in ({"ours"}, {"unbound"})


# `i` int, `l` int64_t or long long, `p` pointer.
def kinds(parameters: str) -> str:
    found = []
    for parameter in re.sub(r"/\*.*?\*/", "", parameters, flags=re.DOTALL).split(","):
        words = parameter.split()
        if "*" in parameter or "[" in parameter or "Handle_t" in parameter:
            found.append("p")
        elif "int64_t" in words or "long" in words:
            found.append("l")
        else:
            found.append("i")
    return "".join(found)


def test_prototypes_of_counted_functions_are_those_of_the_header(path: Path) -> None:
    """An argument of another width would be passed on cut."""
    header = path.parents[1] / "include" / "cublas_api.h"
    if not header.exists():
        pytest.skip("needs cublas_api.h (it lies in the wheel nvidia-cublas)")
    theirs = {
        name: kinds(parameters)
        for name, parameters in re.findall(
            r"cublasStatus_t CUBLASWINAPI (cublas\w+)\(([^;]*?)\);", header.read_text()
        )
    }
    source = Path(build.source_folder()) / "legacy.c"
    done = subprocess.run(["cc", "-E", "-P", str(source)], capture_output=True, text=True)
    text = done.stdout.replace("\n", " ")
    ours = {
        name: kinds(
            re.sub(r"\b(ins?|outs?) ", "void * ", parameters).replace("stride ", "long long ")
        )
        for name, parameters in re.findall(r"int (cublas\w+) \(([^)]*)\) \{", text)
    }
    assert len(ours) == 64
    assert {name: theirs.get(name) for name in ours} == ours
