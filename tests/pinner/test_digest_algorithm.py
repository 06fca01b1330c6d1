"""nh128 is what docs/digest.md says, in each of its forms, whatever the cut; and it mixes well."""

from __future__ import annotations

import itertools
import json
import random
import re
import secrets
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pinner.inside.evidence import nh128, nh128_native, nh128_triton, tensor_sums
from pinner.inside.evidence.algorithms import sums_by_numpy
from pinner.inside.evidence.digest import NH128, digest
from tests import nh128_by_hand as by_hand

REPO = Path(__file__).resolve().parents[2]
VECTORS = json.loads((REPO / "tests" / "digest_vectors.json").read_text())
BLOCK = nh128.BLOCK_BYTES
CPU = torch.device("cpu")


def native() -> nh128_native.Native:
    found = nh128_native.load()
    assert found is not None, "expected a C compiler on this machine"
    return found


def by_c(data: torch.Tensor) -> bytes:
    return native().sums(data.data_ptr(), data.numel())


def by_torch(data: torch.Tensor) -> bytes:
    adder = tensor_sums.ByTorch(torch, CPU)
    adder.add(data, 0)
    return bytes(adder.sums())


def by_numpy(data: torch.Tensor) -> bytes:
    return sums_by_numpy(np, data.numpy())


def by_triton(data: torch.Tensor) -> bytes:
    sums = torch.zeros(2, dtype=torch.int64)
    nh128_triton.load().add(torch, data, 0, sums)
    return nh128.sums_as_bytes(*sums.tolist())


FORMS: list[Callable[[torch.Tensor], bytes]] = [by_c, by_torch, by_numpy, by_triton]


def expected(data: bytes) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in by_hand.sums(data))


def tensor_of(data: bytes, offset: int = 0) -> torch.Tensor:
    """The bytes in a tensor whose memory begins `offset` bytes after a multiple of 8."""
    held = torch.zeros(len(data) + 16, dtype=torch.uint8)
    start = -held.data_ptr() % 8 + offset
    if data:
        held[start : start + len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return held[start : start + len(data)]


def pattern(size: int) -> bytes:
    return bytes((7 * i * i + 3 * i) % 256 for i in range(size))


class TestPublishedVectors:
    @pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['dtype']}{v['shape']}")
    def test_the_form_by_hand_gives_them(self, vector: dict[str, Any]) -> None:
        data = pattern(vector["bytes"])
        assert [f"{half:016x}" for half in by_hand.sums(data)] == [vector["A"], vector["B"]]
        assert by_hand.digest(vector["dtype"], vector["shape"], data) == vector["digest"]

    @pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['dtype']}{v['shape']}")
    def test_so_does_a_tensor(self, vector: dict[str, Any]) -> None:
        data = tensor_of(pattern(vector["bytes"]))
        value = data.view(getattr(torch, vector["dtype"])).reshape(vector["shape"])
        assert digest(value, NH128)[0] == vector["digest"]

    def test_those_of_the_page_are_among_them(self) -> None:
        rows = re.findall(
            r"^\| `\w+` \| .*`(nh128:\w+)` \|$", (REPO / "docs/digest.md").read_text(), re.M
        )
        assert len(rows) == 3
        assert set(rows) <= {vector["digest"] for vector in VECTORS}

    def test_keys_are_as_described_and_none_is_half_zero(self) -> None:
        assert list(nh128.KEYS) == by_hand.keys()
        assert all(key % 2**32 and key >> 32 for key in nh128.KEYS)

    def test_a_fresh_library_is_tried_on_the_right_answer(self) -> None:
        assert by_hand.sums(nh128_native.check_bytes()) == nh128_native.CHECK


class TestFormsAgree:
    @pytest.mark.parametrize(
        "size", [0, 1, 7, 8, 9, 63, 64, 65, 511, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 77]
    )
    def test_at_each_edge(self, size: int) -> None:
        data = secrets.token_bytes(size)
        assert {form(tensor_of(data)) for form in FORMS} == {expected(data)}, data.hex()

    @given(st.binary(max_size=300), st.integers(0, 7))
    @settings(max_examples=60, deadline=None)
    def test_on_any_bytes_at_any_address(self, data: bytes, offset: int) -> None:
        for form in (by_c, by_torch, by_numpy):
            assert form(tensor_of(data, offset)) == expected(data)

    @given(st.integers(0, 3 * BLOCK), st.integers(0, 7), st.integers(0))
    @settings(max_examples=12, deadline=None)
    def test_triton_on_any_size_at_any_address(self, size: int, offset: int, seed: int) -> None:
        data = random.Random(seed).randbytes(size)
        assert by_triton(tensor_of(data, offset)) == by_c(tensor_of(data))

    @given(st.lists(st.integers(0, 5), max_size=4), st.sampled_from(["int16", "float32", "bool"]))
    @settings(max_examples=40, deadline=None)
    def test_on_any_shape(self, shape: list[int], name: str) -> None:
        value = torch.randint(0, 2, shape).to(getattr(torch, name))
        data = value.numpy().tobytes()
        assert digest(value, NH128)[0] == by_hand.digest(name, shape, data)

    @given(
        st.lists(st.tuples(st.integers(1, 6), st.integers(0, 40)), min_size=1, max_size=5),
        st.sampled_from(["uint8", "int16", "float32", "float64", "complex128"]),
        st.integers(0, 3),
    )
    @settings(max_examples=120, deadline=None)
    def test_on_memory_with_any_gaps_and_overlaps(
        self, axes: list[tuple[int, int]], name: str, offset: int
    ) -> None:
        sizes, strides = zip(*axes, strict=True)
        reach = offset + 1 + sum((size - 1) * stride for size, stride in axes)
        held = torch.randint(0, 256, (16 * reach,), dtype=torch.uint8).view(getattr(torch, name))
        view = held.as_strided(sizes, strides, offset)
        data = view.clone(memory_format=torch.contiguous_format).numpy().tobytes()
        assert digest(view, NH128)[0] == by_hand.digest(name, sizes, data)

    def test_more_than_one_chunk_of_torch_and_one_round_of_programs(self) -> None:
        chunk = nh128.ArrayOps.HOST_BLOCKS * BLOCK
        data = torch.randint(0, 256, (2 * chunk + 1237,), dtype=torch.uint8)
        assert len({form(data) for form in FORMS}) == 1

    def test_many_at_once(self) -> None:
        values = [tensor_of(secrets.token_bytes(size)) for size in (1, 8, 100, BLOCK, 9001, 33)]
        addresses = array("Q", [value.data_ptr() for value in values])
        sizes = array("Q", [value.numel() for value in values])
        found = native().sums_of_many(addresses, sizes)
        table = torch.zeros((len(values), 2), dtype=torch.int64)
        nh128_triton.load().add_many(torch, list(addresses), list(sizes), table)
        singly = b"".join(map(by_c, values))
        assert found == singly
        assert b"".join(nh128.sums_as_bytes(*row) for row in table.tolist()) == singly

    @pytest.mark.parametrize("threads", [2, 3, 7, 16, 200])
    def test_any_number_of_threads(self, threads: int) -> None:
        data = torch.randint(0, 256, (50 * BLOCK + secrets.randbelow(BLOCK),), dtype=torch.uint8)
        found = nh128_native.Pair()
        native()._freeing(data.data_ptr(), data.numel(), 0, threads, found)
        assert bytes(found) == native().sums(data.data_ptr(), data.numel(), threads=1)

    def test_parts_of_whole_blocks_add_up_in_any_order(self) -> None:
        data = torch.randint(0, 256, (9 * BLOCK + 13,), dtype=torch.uint8)
        cuts = [0, *sorted(random.sample(range(1, 9), 3)), 10]
        parts = [(a, data[a * BLOCK : b * BLOCK]) for a, b in itertools.pairwise(cuts)]
        random.shuffle(parts)
        print("cuts", cuts)
        found = nh128_native.Pair()
        for block, part in parts:
            native().add(part.data_ptr(), part.numel(), block, found)
        assert bytes(found) == by_c(data)


def sums_of_rows(rows: np.ndarray[Any, Any]) -> list[bytes]:
    """A and B of each row of a two-dimensional array."""
    rows = np.ascontiguousarray(rows)
    start, step = rows.__array_interface__["data"][0], rows.strides[0]
    addresses = array("Q", range(start, start + step * len(rows), step))
    found = native().sums_of_many(addresses, array("Q", [step] * len(rows)))
    return [found[16 * i : 16 * i + 16] for i in range(len(rows))]


def all_differ(rows: np.ndarray[Any, Any]) -> bool:
    """Whether no two rows agree in either half: 64 bits alone tell all of them apart."""
    found = sums_of_rows(rows)
    return all(len({each[half : half + 8] for each in found}) == len(rows) for half in (0, 8))


class TestMixing:
    """Structured inputs, on which weak sums collide. Half a digest must tell them apart."""

    def test_one_bit_in_a_block_of_zeros_or_ones(self) -> None:
        ones = np.eye(BLOCK, dtype=np.uint8)
        rows = np.concatenate([ones << bit for bit in range(8)] + [np.zeros((1, BLOCK), np.uint8)])
        assert all_differ(rows)
        assert all_differ(~rows)

    def test_every_constant_of_sixteen_bits(self) -> None:
        values = np.arange(65536, dtype=np.uint16).reshape(-1, 1)
        assert all_differ(np.repeat(values, 32, axis=1))

    def test_one_element_at_each_place(self) -> None:
        """The same float32 in an otherwise empty tensor of 2048."""
        for value in (1.0, -1.0, 1e-45):
            assert all_differ(np.eye(2048, dtype=np.float32) * np.float32(value))

    @pytest.mark.parametrize("bit", [0, 15, 31, 32, 62, 63])
    def test_the_same_bit_of_any_two_words(self, bit: int) -> None:
        """Pairs of sign flips cancel wherever a high bit moves only high bits."""
        pairs = list(itertools.combinations(range(128), 2))
        words = np.random.default_rng(secrets.randbits(32)).integers(0, 2**63, 128, np.uint64)
        for base in (words, np.zeros_like(words)):
            rows = np.tile(base, (len(pairs), 1))
            for row, pair in zip(rows, pairs, strict=True):
                row[list(pair)] ^= np.uint64(1 << bit)
            assert all_differ(rows)

    def test_one_up_and_one_down_at_any_two_places(self) -> None:
        pairs = list(itertools.permutations(range(64), 2))
        rows = np.full((len(pairs), 64), 0x3F800000, dtype=np.uint32)
        for row, (up, down) in zip(rows, pairs, strict=True):
            row[up] += 1
            row[down] -= 1
        assert all_differ(rows)

    def test_any_two_words_swapped(self) -> None:
        pairs = list(itertools.combinations(range(128), 2))
        rows = np.tile(np.arange(128, dtype=np.uint64), (len(pairs) + 1, 1))
        for row, (a, b) in zip(rows, pairs, strict=False):
            row[[a, b]] = row[[b, a]]
        assert all_differ(rows)

    def test_blocks_swapped(self) -> None:
        blocks = np.arange(6, dtype=np.uint8).repeat(BLOCK).reshape(6, BLOCK)
        rows = [blocks[list(order)].reshape(-1) for order in itertools.permutations(range(6))]
        assert all_differ(np.stack(rows))

    def test_a_flipped_bit_changes_every_bit_of_the_sums_half_of_the_time(self) -> None:
        seed = secrets.randbits(32)
        print("seed", seed)
        draw = np.random.default_rng(seed)
        count = 4000
        rows = draw.integers(0, 256, (count, 600), np.uint8)
        flipped = rows.copy()
        places = draw.integers(0, 600, count)
        flipped[np.arange(count), places] ^= np.uint8(1) << draw.integers(0, 8, count, np.uint8)
        before, after = (
            np.frombuffer(b"".join(sums_of_rows(r)), np.uint8) for r in (rows, flipped)
        )
        bits = np.unpackbits((before ^ after).reshape(count, 16), axis=1)
        # Six standard deviations of `count` fair coins, for each of the 128 bits and for all.
        assert abs(bits.mean(axis=0) - 0.5).max() < 6 * 0.5 / count**0.5
        assert abs(bits.mean() - 0.5) < 6 * 0.5 / (128 * count) ** 0.5
