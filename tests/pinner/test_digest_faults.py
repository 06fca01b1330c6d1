"""What other checks let pass is caught (F1 to F3), in every form of the digest."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator

import pytest
import torch

from pinner.inside.evidence import nh128_native, nh128_triton, tensor_sums
from pinner.inside.evidence.digest import NH128, SHA256, Algorithm, digest

SEED = secrets.randbits(32)


@pytest.fixture(params=["c", "torch", "triton", "sha256"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Algorithm]:
    """Tensors are digested by this form only."""
    if request.param == "sha256":
        yield SHA256
        return
    if request.param != "c":
        monkeypatch.setattr(nh128_native, "load", lambda: None)
    if request.param == "triton":
        monkeypatch.setattr(tensor_sums, "kernels_for", lambda device: nh128_triton.load())
        monkeypatch.setattr(
            tensor_sums,
            "_adder_for",
            lambda torch, device: tensor_sums.OnGpu(torch, nh128_triton.load(), device),
        )
    yield NH128


@pytest.fixture
def draw() -> random.Random:
    """Places at random; the seed is printed where a test fails."""
    print("seed", SEED)
    return random.Random(SEED)


@pytest.fixture
def size(request: pytest.FixtureRequest) -> int:
    """How many elements: several blocks, but few where Triton's interpreter works row by row."""
    return 90 if request.node.callspec.params["form"] == "triton" else 5000


Differ = Callable[[torch.Tensor, torch.Tensor], bool]


@pytest.fixture
def differ(form: Algorithm) -> Differ:
    """Whether two tensors have different digests, and each that of a copy."""

    def check(one: torch.Tensor, other: torch.Tensor) -> bool:
        found = [digest(each, form)[0] for each in (one, other)]
        assert found == [digest(each.clone(), form)[0] for each in (one, other)]
        return found[0] != found[1]

    return check


class TestWhatOtherChecksMiss:
    def test_f1_two_rows_swapped(self, differ: Differ, draw: random.Random) -> None:
        value = torch.randn(40, 5)
        a, b = draw.sample(range(40), 2)
        order = list(range(40))
        order[a], order[b] = b, a
        assert differ(value, value[order])

    def test_f1_pairs_of_equal_elements_flipped_alike(
        self, differ: Differ, draw: random.Random, size: int
    ) -> None:
        value = torch.ones(size, dtype=torch.int32)
        other = value.clone()
        other[draw.sample(range(size), 2)] ^= 1 << draw.randrange(31)
        assert differ(value, other)

    @pytest.mark.parametrize("count", [2, 64, 128])
    def test_f1_zeros_against_ones_and_twos(self, differ: Differ, count: int) -> None:
        zeros, ones, twos = (torch.full((count,), number) for number in (0.0, 1.0, 2.0))
        assert differ(zeros, ones)
        assert differ(ones, twos)
        assert differ(zeros, twos)

    def test_f2_signs_moved(self, differ: Differ) -> None:
        assert differ(torch.tensor([1.0, -2.0]), torch.tensor([2.0, -1.0]))
        assert differ(torch.tensor([1.0, -2.0]), torch.tensor([-1.0, 2.0]))

    def test_f2_equal_tensors_with_nan_are_equal(self, form: Algorithm) -> None:
        value = torch.tensor([float("nan"), 1.0, float("inf")])
        assert digest(value, form) == digest(value.clone(), form)

    def test_f3_sign_of_zero(self, differ: Differ, draw: random.Random, size: int) -> None:
        value = torch.zeros(size)
        other = value.clone()
        other[draw.randrange(size)] = -0.0
        assert torch.equal(value, other)
        assert differ(value, other)

    def test_f3_payload_of_nan(self, differ: Differ, draw: random.Random, size: int) -> None:
        value = torch.full((size,), float("nan"))
        other = value.clone()
        other.view(torch.int32)[draw.randrange(size)] ^= 1 << draw.randrange(22)
        assert bool(other.isnan().all())
        assert differ(value, other)


class TestPlantedFaults:
    @pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "float8_e4m3fn"])
    def test_one_bit(self, differ: Differ, draw: random.Random, name: str, size: int) -> None:
        value = torch.randint(0, 256, (size * 8,), dtype=torch.uint8)
        for _ in range(2):
            other = value.clone()
            place, bit = draw.randrange(size * 8), draw.randrange(8)
            other[place] ^= 1 << bit
            dtype = getattr(torch, name)
            assert differ(value.view(dtype), other.view(dtype)), (place, bit)

    @pytest.mark.parametrize("name", ["int32", "int16", "int64", "int8"])
    def test_four_changes_of_one_unit_that_cancel(
        self, differ: Differ, draw: random.Random, name: str, size: int
    ) -> None:
        """Neighbours, and anywhere: in sum and in any sum with linear weights of neighbours."""
        dtype = getattr(torch, name)
        value = torch.randint(-50, 50, (size,), dtype=dtype)
        start = draw.randrange(size - 4)
        for places in (list(range(start, start + 4)), draw.sample(range(size), 4)):
            other = value.clone()
            other[places] += torch.tensor([1, -1, -1, 1], dtype=dtype)
            assert differ(value, other), places

    def test_two_elements_swapped(self, differ: Differ, draw: random.Random, size: int) -> None:
        value = torch.arange(size).to(torch.bfloat16)
        a, b = draw.sample(range(0, size, 32), 2)  # different also in bfloat16
        other = value.clone()
        other[[a, b]] = other[[b, a]]
        assert differ(value, other), (a, b)

    def test_a_word_moved_within_its_column(self, differ: Differ, draw: random.Random) -> None:
        """Words 8 apart are mixed in one sum."""
        value = torch.zeros(100, dtype=torch.int64)
        other = value.clone()
        place = draw.randrange(92)
        value[place] = other[place + 8] = draw.getrandbits(62)
        assert differ(value, other), place

    def test_one_element_more_or_less(self, differ: Differ) -> None:
        value = torch.zeros(100, dtype=torch.uint8)
        assert differ(value, value[:99])
        assert differ(value, torch.cat([value, value[:1]]))
