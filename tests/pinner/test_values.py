"""Key and config values: what can be pinned, what is one value and what is not."""

from __future__ import annotations

import ast
import enum
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinner.inside import values
from pinner.inside.values import Unpinnable, canonical, encode, encode_named, share_class
from tests import locks

plain = st.recursive(
    st.one_of(st.none(), locks.scalars), lambda inner: st.lists(inner).map(tuple), max_leaves=8
)


def _typed(value: Any) -> Any:
    """The value with the types of its parts, so that `==` tells True, 1 and 1.0 apart."""
    if isinstance(value, tuple):
        return tuple(_typed(item) for item in value)
    return type(value).__name__, repr(value)


@given(plain, plain)
def test_canonical_texts_are_equal_exactly_for_equal_values(one: Any, other: Any) -> None:
    same = canonical(encode(one)) == canonical(encode(other))
    assert same == (_typed(one) == _typed(other))


@given(plain)
def test_the_tagged_form_survives_json(value: Any) -> None:
    text = canonical(encode(value))
    assert text.isascii()
    assert canonical(json.loads(text)) == text


def test_true_one_and_one_point_zero_are_three_values() -> None:
    assert [canonical(encode(value)) for value in (True, 1, 1.0)] == ["true", "1", "1.0"]


def test_the_two_zeros_are_two_values() -> None:
    assert canonical(encode(0.0)) != canonical(encode(-0.0))


def test_a_list_and_a_tuple_are_one_value() -> None:
    assert encode((1, (2,))) == encode([1, [2]])


class _Order(enum.IntEnum):
    FIRST = 1


class _Name(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "expected"), [(_Order.FIRST, "1"), (_Name("x"), '"x"'), (float("nan"), "NaN")]
)
def test_subclasses_of_plain_types_are_their_plain_value(value: Any, expected: str) -> None:
    encoded = encode(value)
    assert canonical(encoded) == expected
    assert type(encoded) in (int, str, float)


def test_torch_dtypes_have_torchs_names_and_triton_dtypes_tritons() -> None:
    torch = pytest.importorskip("torch")
    language = pytest.importorskip("triton.language")
    assert encode(torch.float16) == {"dtype": "float16"}
    assert encode(language.float16) == {"dtype": "fp16"}
    assert encode(language.pointer_type(language.float32)) == {"dtype": "pointer<fp32>"}


def test_a_constexpr_is_its_value() -> None:
    language = pytest.importorskip("triton.language")
    assert encode(language.constexpr((1, language.constexpr(None)))) == [1, {"none": True}]


def test_numpy_scalars_are_python_scalars() -> None:
    np = pytest.importorskip("numpy")
    given = [np.float32(1.5), np.int64(3), np.bool_(True), np.str_("x")]
    assert [canonical(encode(value)) for value in given] == ["1.5", "3", "true", '"x"']


def test_a_number_no_python_type_can_hold_is_refused() -> None:
    np = pytest.importorskip("numpy")
    with pytest.raises(Unpinnable, match=r"numpy\.longdouble"):
        encode(np.longdouble(1))


class _Thing:
    pass


@pytest.mark.parametrize("value", [_Thing(), _Thing, len, b"x", 1j, {"a": 1}, {1}])
def test_other_values_are_refused_by_the_name_of_their_type(value: Any) -> None:
    with pytest.raises(Unpinnable, match=type(value).__qualname__):
        encode(value)


def test_tensors_and_arrays_are_refused_by_name() -> None:
    torch = pytest.importorskip("torch")
    np = pytest.importorskip("numpy")
    with pytest.raises(Unpinnable, match=r"torch\.Tensor"):
        encode(torch.ones(1))
    with pytest.raises(Unpinnable, match=r"numpy\.ndarray"):
        encode((1, np.ones(1)))


def test_a_refusal_names_the_argument() -> None:
    with pytest.raises(Unpinnable, match=r"bias: expected .* found a .*_Thing"):
        encode_named({"N": 1, "bias": _Thing()})


@pytest.mark.parametrize("value", ["\ud800", 1 << 5000])
def test_what_the_file_formats_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(Unpinnable):
        encode(value)


def _tritons_key(key: dict[str, Any]) -> tuple[Any, ...]:
    """As Triton builds it when every key argument is passed and dtypes come in some order; the
    chooser adds the types of the values."""
    numbers = [_typed(key[name]) for name in sorted(key) if ":" not in name]
    return (*numbers, *sorted(str(key[name]) for name in sorted(key) if ":" in name))


numbers = st.one_of(st.booleans(), st.integers(-3, 3), st.sampled_from([0.0, -0.0, 1.0, 1.5]))
keys = st.fixed_dictionaries(
    {
        "M": numbers,
        "N": numbers,
        "x:dtype": st.sampled_from(["float16", "float32"]),
        "y:dtype": st.sampled_from(["float16", "float32"]),
    }
)


@given(keys, keys)
def test_keys_share_a_class_exactly_if_a_recorded_run_decides_them_as_one(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert (share_class(one) == share_class(other)) == (_tritons_key(one) == _tritons_key(other))


def test_types_inside_a_tuple_keep_keys_apart_too() -> None:
    assert share_class({"s": [1, [True]]}) != share_class({"s": [1.0, [1]]})
    assert share_class({"s": [1], "x:dtype": "a"}) == share_class({"s": [1], "y:dtype": "a"})


def test_people_see_plain_python() -> None:
    key: dict[str, Any] = {
        "x:dtype": "float32",
        "num_warps": 4,
        "N": [1],
        "d": {"dtype": "fp16"},
        "n": values.NONE,
    }
    assert values.readable_named(key) == "N=(1,) d=fp16 n=None num_warps=4 x:dtype='float32'"


def test_what_is_no_value_is_shown_as_it_is() -> None:
    assert values.readable({"object": "function"}) == '{"object":"function"}'


def test_the_file_is_python_3_8() -> None:
    source = Path(values.__file__).read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 8))
