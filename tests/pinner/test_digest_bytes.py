"""The last word: bytes kept in files, and what differs in them, to the element and the ulp."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import resource
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pinner.compare import tensor_bytes
from pinner.compare.tensor_bytes import RULES, BytesError, compare_files, read_header, ulp
from pinner.inside.evidence import kept_bytes, tensor_sums
from pinner.inside.faults import EvidenceError

pytestmark = pytest.mark.filterwarnings("ignore")  # prototypes: sparse, quantised, complex32

PLAIN = sorted(name for name in RULES if hasattr(torch, name))


def pair(folder: Path, one: Any, other: Any) -> tensor_bytes.Comparison:
    kept_bytes.keep(str(folder / "a"), one)
    kept_bytes.keep(str(folder / "b"), other)
    return compare_files(folder / "a", folder / "b")


def some(name: str, count: int) -> torch.Tensor:
    dtype = getattr(torch, name)
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.frombuffer(bytearray(secrets.token_bytes(count * size)), dtype=torch.uint8)
    return (raw & 1).bool() if name == "bool" else raw.view(dtype)


class TestFormat:
    """What is written is a safetensors file, by the letter of its description."""

    def test_header_and_data(self, tmp_path: Path) -> None:
        value = torch.tensor([[1.0, -2.5], [0.0, math.inf]], dtype=torch.bfloat16)
        kept_bytes.keep(str(tmp_path / "x"), value.t(), "loss", {"step": "7"})
        text = (tmp_path / "x").read_bytes()
        length = int.from_bytes(text[:8], "little")
        assert length % 8 == 0
        assert json.loads(text[8 : 8 + length]) == {
            "__metadata__": {"step": "7"},
            "loss": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
        }
        assert text[8 + length :] == value.t().contiguous().view(torch.uint8).numpy().tobytes()

    def test_the_library_reads_it(self, tmp_path: Path) -> None:
        library = pytest.importorskip("safetensors.torch")
        value = torch.randn(4, 5)
        kept_bytes.keep(str(tmp_path / "x"), [value, value.to(torch.complex128)])
        found = library.load_file(tmp_path / "x")
        assert torch.equal(found["value.0"], value)
        assert found["value.1"].shape == (4, 5, 16)

    @pytest.mark.parametrize("name", PLAIN)
    def test_every_dtype_comes_back(self, tmp_path: Path, name: str) -> None:
        value = some(name, 6)
        kept_bytes.keep(str(tmp_path / "x"), value)
        [kept] = read_header(tmp_path / "x").tensors.values()
        assert (kept.dtype, kept.shape) == (name, (6,))
        data = (tmp_path / "x").read_bytes()[kept.begin : kept.begin + kept.size]
        assert data == value.view(torch.uint8).numpy().tobytes()

    def test_layouts_and_parts(self, tmp_path: Path) -> None:
        dense = torch.eye(3)
        value = [
            dense.to_sparse(),
            dense.t()[1:],
            np.arange(3),
            2.5,
            "x",
            torch.tensor(1),
            dense[:0],
        ]
        kept_bytes.keep(str(tmp_path / "x"), value)
        found = read_header(tmp_path / "x")
        assert list(found.tensors) == [
            "value.0.0",
            "value.0.1",
            "value.1",
            "value.2",
            "value.5",
            "value.6",
        ]
        assert found.metadata["value:value.3"] == (2.5).hex()
        assert found.metadata["parts:value"] == "7 tuple"

    def test_what_has_no_bytes_leaves_no_file(self, tmp_path: Path) -> None:
        for value in (torch.empty(2, device="meta"), [object()]):
            with pytest.raises(EvidenceError):
                kept_bytes.keep(str(tmp_path / "x"), value)
        assert list(tmp_path.iterdir()) == []

    def test_pieces(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tensor_sums, "HOST_PIECE", 100)
        value = torch.randn(37, 11)
        for view in (value, value.t(), value[3:, ::2]):
            kept_bytes.keep(str(tmp_path / "x"), view)
            assert (tmp_path / "x").read_bytes().endswith(view.contiguous().numpy().tobytes())


class TestDifferences:
    def test_equal(self, tmp_path: Path) -> None:
        value = [torch.tensor([math.nan, -0.0]), 1.5, torch.ones(3).to_sparse()]
        assert pair(tmp_path, value, value).equal

    @pytest.mark.parametrize("name", PLAIN)
    def test_the_place_of_one_flipped_bit(self, tmp_path: Path, name: str) -> None:
        value = some(name, 40).reshape(5, 8)
        other = value.clone()
        raw = other.view(torch.uint8).view(-1)
        byte = secrets.randbelow(raw.numel())
        raw[byte] ^= 1
        [found] = pair(tmp_path, value, other).differences
        size = value.element_size()
        assert found.differing == 1
        if name == "float4_e2m1fn_x2":
            assert (found.first, found.elements) == (2 * byte, 80)  # the low half comes first
        else:
            assert (found.first, found.elements) == (byte // size, 40)
            assert found.place == divmod(byte // size, 8)
            bits = value.view(torch.uint8).view(-1, size)[byte // size].numpy().tobytes()
            parts = RULES[name].parts
            width = size // parts
            numbers = [
                int.from_bytes(bits[i * width : (i + 1) * width], "little") for i in range(parts)
            ]
            assert found.values[0] == ",".join(f"0x{n:0{2 * width}x}" for n in numbers)

    def test_counts_and_ulps(self, tmp_path: Path) -> None:
        value = torch.tensor([1.0, 0.0, -1.0, math.nan, 2.0, math.inf])
        other = value.clone()
        other[1] = -0.0
        other[2] = -1.0000002  # two steps of 2**-23 at one, rounded
        other[3] = 1.0
        other[5] = torch.finfo(torch.float32).max
        [found] = pair(tmp_path, value, other).differences
        assert (found.differing, found.first, found.not_numbers) == (4, 1, 1)
        assert found.values == ("0x00000000", "0x80000000")
        assert (found.ulp, found.most_ulp, found.most_ulp_at) == (0, 2, 2)
        assert found.line() == (
            "value: 4 of 6 float32 elements differ, first at [1]: 0x00000000 and 0x80000000, "
            "0 ulp apart; at most 2 ulp (element 2); 1 with a NaN"
        )

    def test_rows_that_differ_are_named(self, tmp_path: Path) -> None:
        """Routing maps and permutations are read row by row."""
        seed = secrets.randbits(32)
        print("seed", seed)
        draw = random.Random(seed)
        rows = sorted(draw.sample(range(40), draw.randint(1, 12)))
        routing = torch.arange(120).reshape(40, 3)
        other = routing.clone()
        for row in rows:
            other[row, draw.randrange(3) :] += 1
        (found,) = pair(tmp_path, routing, other).differences
        assert (found.rows, found.first_rows) == (len(rows), tuple(rows[:8]))
        shown = ", ".join(map(str, rows[:8])) + (", …" if len(rows) > 8 else "")
        assert found.line().endswith(f"; in {len(rows)} of 40 rows ({shown})")

    def test_a_single_axis_has_no_rows(self, tmp_path: Path) -> None:
        (found,) = pair(tmp_path, torch.zeros(3), torch.ones(3)).differences
        assert (found.rows, found.first_rows) == (None, ())

    def test_integers_have_no_ulp(self, tmp_path: Path) -> None:
        [found] = pair(tmp_path, torch.tensor([1, 2]), torch.tensor([1, 3])).differences
        assert (found.ulp, found.most_ulp, found.not_numbers) == (None, None, 0)
        assert found.values == ("0x0000000000000002", "0x0000000000000003")

    def test_a_complex_number_is_one_element(self, tmp_path: Path) -> None:
        value = torch.tensor([1 + 1j, 2 + 2j, 3 + 3j])
        other = value.clone()
        torch.view_as_real(other).view(torch.int32)[1:] += torch.tensor([1, 3], dtype=torch.int32)
        [found] = pair(tmp_path, value, other).differences
        assert (found.differing, found.first, found.ulp, found.most_ulp) == (2, 1, 3, 3)
        assert found.values[0] == "0x40000000,0x40000000"

    def test_a_dtype_without_a_rule_is_compared_by_bytes(self, tmp_path: Path) -> None:
        value = torch.arange(8, dtype=torch.uint8).view(torch.bits16)
        other = (torch.arange(8, dtype=torch.uint8) ^ 1).view(torch.bits16)
        [found] = pair(tmp_path, value, other).differences
        assert (found.dtype, found.elements, found.differing) == ("bits16 (bytes)", 8, 8)

    def test_across_pieces(self, tmp_path: Path) -> None:
        value = torch.zeros(3 * tensor_bytes._PIECE, dtype=torch.int16)
        places = sorted({secrets.randbelow(value.numel()) for _ in range(50)})
        other = value.clone()
        other[places] = 1
        [found] = pair(tmp_path, value, other).differences
        assert (found.first, found.differing) == (places[0], len(places)), places

    def test_memory_is_constant(self, tmp_path: Path) -> None:
        value = torch.zeros(16 << 20, dtype=torch.uint8)
        other = value.clone()
        other[-1] = 1
        kept_bytes.keep(str(tmp_path / "a"), value)
        kept_bytes.keep(str(tmp_path / "b"), other)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        [found] = compare_files(tmp_path / "a", tmp_path / "b").differences
        assert found.first == value.numel() - 1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 << 10, "KiB"

    def test_what_has_no_counterpart_is_named(self, tmp_path: Path) -> None:
        found = pair(tmp_path, [torch.ones(2), 1], [torch.ones(3), 2, torch.ones(1)])
        assert found.differences == ()
        assert not found.equal
        assert [line.partition(":")[0] for line in found.unlike] == [
            "value",
            "value.1",
            "value.0",
            "value.2",
        ]


# float formats that numpy or torch can count through, with the integer of their size
STEPS = {"float64": torch.int64, "float32": torch.int32, "float16": torch.int16}
FLOATS = [name for name in PLAIN if RULES[name].is_float and RULES[name].parts == 1]


class TestUlp:
    @given(st.floats(width=32), st.integers(0, 1000))
    @settings(max_examples=200, deadline=None)
    def test_steps_of_nextafter_are_counted(self, start: float, steps: int) -> None:
        one = np.float32(start)
        other = one
        for _ in range(steps % 50):
            other = np.nextafter(other, np.float32(math.inf))
        codes = [int(x.view(np.uint32)) for x in (one, other)]
        distance = ulp(RULES["float32"], *codes)
        if math.isnan(one):
            assert distance is None
        elif not math.isinf(other):
            assert distance == steps % 50

    @pytest.mark.parametrize("name", [n for n in FLOATS if RULES[n].bits == 8])
    def test_all_codes_of_eight_bits(self, name: str) -> None:
        """Sorted by value, neighbours are one ulp apart (zeros of either sign: none)."""
        rule = RULES[name]
        values = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name)).double().tolist()
        assert [ulp(rule, code, 0) is None for code in range(256)] == [
            math.isnan(v) for v in values
        ]
        codes = sorted((v, code) for code, v in enumerate(values) if not math.isnan(v))
        distances = [ulp(rule, a[1], b[1]) for a, b in itertools.pairwise(codes)]
        assert distances == [0 if a[0] == b[0] else 1 for a, b in itertools.pairwise(codes)]

    @pytest.mark.parametrize("name", ["bfloat16", "float16"])
    def test_all_codes_of_sixteen_bits(self, name: str) -> None:
        rule = RULES[name]
        values = torch.arange(65536).to(torch.uint16).view(getattr(torch, name)).double().tolist()
        codes = sorted((v, code) for code, v in enumerate(values) if not math.isnan(v))
        for a, b in itertools.pairwise(codes):
            assert ulp(rule, a[1], b[1]) == (0 if a[0] == b[0] else 1)
        assert sum(ulp(rule, code, 0) is None for code in range(65536)) == 65536 - len(codes)

    def test_fp4(self) -> None:
        assert ulp(RULES["float4_e2m1fn_x2"], 0b0001, 0b1001) == 2
        assert ulp(RULES["float4_e2m1fn_x2"], 0b0111, 0b0000) == 7


class TestBrokenFiles:
    def good(self, folder: Path) -> bytes:
        kept_bytes.keep(str(folder / "good"), torch.ones(4))
        return (folder / "good").read_bytes()

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda data: data[:5], "expected a safetensors file"),
            (lambda data: b"\xff" * 8 + data[8:], "expected a safetensors file"),
            (lambda data: data[:-1], "value is cut off"),
            (lambda data: data[:8] + b"x" + data[9:], "not JSON"),
            (lambda data: data.replace(b'"shape":[4]', b'"shape":[3]'), "expected 12 bytes"),
            (lambda data: data.replace(b'"shape":[4]', b'"shape":"4"'), "no such tensors"),
            (lambda data: data.replace(b'"dtype"', b'"other"'), "no such tensors"),
        ],
    )
    def test_it_is_said_what_is_wrong(self, tmp_path: Path, change: Any, said: str) -> None:
        (tmp_path / "bad").write_bytes(change(self.good(tmp_path)))
        with pytest.raises(BytesError, match=said):
            read_header(tmp_path / "bad")

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(BytesError, match=os.strerror(2)):
            read_header(tmp_path / "none")
