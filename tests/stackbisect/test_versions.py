"""Versions and tags: order as people mean it, equality as PEP 440 has it."""

from __future__ import annotations

import random

import pytest

from stackbisect.spaces import versions


@pytest.mark.parametrize(
    "ordered",
    [
        ["23.12-py3", "24.01-py3", "24.02-py3", "24.10-py3", "25.01-py3"],
        ["2.0.0.dev20240101", "2.0.0a1", "2.0.0b2", "2.0.0rc1", "2.0.0rc2", "2.0.0", "2.0.1"],
        ["v1.9", "v1.10", "v2.0-rc.1", "v2.0"],
        ["1", "2", "3", "10", "11"],
        ["2.0", "2.0-slim", "2.0.1", "2.0.1-slim"],
        ["cu118-2.1", "cu121-2.1", "cu121-2.2"],
        ["20240501", "20240612", "20250101"],
        ["nightly-20240501", "nightly-20240502"],
    ],
)
def test_tags_are_ordered_as_people_mean_them(ordered: list[str]) -> None:
    shuffled = random.Random(7).sample(ordered, len(ordered))
    assert sorted(shuffled, key=lambda tag: versions.tag_key(tag) or ()) == ordered


@pytest.mark.parametrize("tag", ["latest", "nightly", "stable", "main"])
def test_a_tag_without_a_number_has_no_place(tag: str) -> None:
    assert versions.tag_key(tag) is None


@pytest.mark.parametrize(
    ("found", "asked", "expected"),
    [
        ("2.13.0+cpu", "2.13.0", True),
        ("2.13.0", "2.13.0+cpu", False),
        ("2.13.0+cu126", "2.13.0+cpu", False),
        ("2.1.0", "2.1", True),
        ("2.1.0-rc.1", "2.1rc1", True),
        ("2.1.0rc1", "2.1", False),
        ("1.0.post1", "1.0-1", True),
        ("1.0.dev3", "1.0dev3", True),
        ("1.10", "1.1", False),
        ("1!1.0", "1.0", False),
        ("V1.0", "1.0", True),
        ("unknown", "unknown", True),
        ("unknown", "1.0", False),
    ],
)
def test_python_versions_are_compared_by_meaning(found: str, asked: str, expected: bool) -> None:
    assert versions.same(found, asked) is expected


def test_prereleases_are_known() -> None:
    assert [versions.is_prerelease(v) for v in ("2.0rc1", "2.0.dev1", "2.0", "2.0.post1")] == [
        True,
        True,
        False,
        False,
    ]


def test_the_form_of_a_tag_is_what_is_left_without_numbers() -> None:
    assert versions.form("24.05-py3-igpu") == "#.#-py#-igpu"


def test_python_versions_are_ordered_by_pep_440() -> None:
    ordered = ["1.0.dev1", "1.0a1.dev2", "1.0a1", "1.0b1", "1.0rc1", "1.0", "1.0+cu1"]
    ordered += ["1.0.post1.dev1", "1.0.post1", "1.1.dev1", "1.1", "1.10", "1!0.1"]
    assert sorted(random.Random(3).sample(ordered, len(ordered)), key=versions.order) == ordered
