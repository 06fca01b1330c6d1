"""Tags as candidates: order, window, duplicates, missing platforms, ends that do not exist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stackbisect.errors import UsageError
from stackbisect.spaces import reference, tags, window
from stackbisect.spaces.registry import Registry
from tests.fakes import registry as fakes


@pytest.fixture(name="fake")
def _fake() -> Iterator[fakes.FakeRegistry]:
    with fakes.serve() as fake:
        yield fake


def find(fake: fakes.FakeRegistry, good: str | None, bad: str, **wanted: Any) -> window.Space:
    """The candidates of the stand-in registry's repository."""
    repository = reference.parse(fake.reference)
    client = Registry(repository, lambda: None)
    wanted.setdefault("platform", "linux/amd64")
    return tags.space(client, repository, tags.Wanted(good, bad, **wanted))


def labels(found: window.Space) -> list[str]:
    """The candidates' names in order."""
    return [candidate.label for candidate in found.candidates]


def excluded(found: window.Space) -> dict[str, str]:
    """What was left out, and why."""
    return {each["label"]: each["reason"] for each in found.excluded}


def test_tags_between_the_ends_are_candidates_in_the_order_of_their_versions(
    fake: fakes.FakeRegistry,
) -> None:
    for tag in ("24.10-py3", "23.12-py3", "24.01-py3", "24.02-py3", "24.03-py3", "latest"):
        fake.content.image(tag, {"TAG": tag})
    found = find(fake, "24.01-py3", "24.10-py3")
    assert labels(found) == ["24.01-py3", "24.02-py3", "24.03-py3", "24.10-py3"]
    assert excluded(found) == {"latest": "no version in its name"}
    first = found.candidates[0]
    assert first.id == fake.content.tags["24.01-py3"]
    assert first.details["reference"] == f"{fake.reference}@{first.id}"
    assert first.details["env"] == ["TAG=24.01-py3"]
    assert [candidate.position for candidate in found.candidates] == [0, 1, 2, 3]


def test_a_search_for_a_repair_runs_backwards(fake: fakes.FakeRegistry) -> None:
    for tag in ("1", "2", "3"):
        fake.content.image(tag, {"TAG": tag})
    found = find(fake, "3", "1")
    assert labels(found) == ["3", "2", "1"]
    assert "searched backwards" in found.notes[0]


def test_without_a_good_end_all_older_tags_are_candidates(
    fake: fakes.FakeRegistry, tmp_path: Path
) -> None:
    for day, tag in enumerate(("2", "10", "latest", "1", "3")):
        created = f"2026-01-{day + 1:02}T00:00:00Z"
        fake.content.image(tag, {"TAG": tag}, created=created)
    found = find(fake, None, "3")
    assert labels(found) == ["1", "2", "3"]
    assert excluded(found) == {"latest": "no version in its name"}
    assert found.notes == (
        "no good end was given: good means no more than other bits than those of 3",
    )
    assert labels(find(fake, None, "1", order="created")) == ["2", "10", "latest", "1"]
    (tmp_path / "list").write_text("10\n3\n2\n1\n")
    assert labels(find(fake, None, "2", listed=tags.read_list(tmp_path / "list"))) == [
        "10",
        "3",
        "2",
    ]
    with pytest.raises(UsageError, match="--bad: tag"):
        find(fake, None, "4")


def test_neighbours_with_one_digest_are_one_candidate(fake: fakes.FakeRegistry) -> None:
    for tag, text in (("1", "a"), ("2", "b"), ("3", "b"), ("4", "c")):
        fake.content.image(tag, {"IS": text})
    found = find(fake, "1", "4")
    assert labels(found) == ["1", "2", "4"]
    assert found.candidates[1].details["tags"] == ["2", "3"]


def test_an_end_keeps_the_name_it_was_given_among_duplicates(fake: fakes.FakeRegistry) -> None:
    for tag, text in (("1", "a"), ("2", "b"), ("3", "b")):
        fake.content.image(tag, {"IS": text})
    assert labels(find(fake, "1", "3")) == ["1", "3"]


def test_an_image_that_comes_back_keeps_both_places_and_one_identity(
    fake: fakes.FakeRegistry,
) -> None:
    for tag, text in (("1", "a"), ("2", "b"), ("3", "a"), ("4", "c")):
        fake.content.image(tag, {"IS": text})
    found = find(fake, "1", "4")
    assert labels(found) == ["1", "2", "3", "4"]
    assert found.candidates[0].id == found.candidates[2].id


def test_an_expression_narrows_the_tags_but_never_the_ends(fake: fakes.FakeRegistry) -> None:
    for tag in ("1-gpu", "2", "2-gpu", "3", "3-gpu", "4"):
        fake.content.image(tag, {"TAG": tag})
    found = find(fake, "1-gpu", "4", pattern="-gpu$")
    assert labels(found) == ["1-gpu", "2-gpu", "3-gpu", "4"]
    assert set(excluded(found)) == {"2", "3"}
    with pytest.raises(UsageError, match="no regular expression"):
        find(fake, "1-gpu", "4", pattern="(")


def test_tags_of_several_forms_are_pointed_out(fake: fakes.FakeRegistry) -> None:
    for tag in ("1.0", "1.0-slim", "1.1", "1.1-slim"):
        fake.content.image(tag, {"TAG": tag})
    assert any("2 forms" in note and "--tags" in note for note in find(fake, "1.0", "1.1").notes)


def test_an_index_is_followed_to_the_platform(fake: fakes.FakeRegistry) -> None:
    for tag in ("1", "2", "3"):
        here = fake.content.image(f"here-{tag}", {"TAG": tag})
        there = fake.content.image(f"there-{tag}", {"TAG": tag}, architecture="arm64")
        entries = {"linux/arm64/v8": there} if tag == "2" else {"linux/arm64": there}
        if tag != "2":
            entries["linux/amd64"] = here
        fake.content.index(tag, entries)
        for name in (f"here-{tag}", f"there-{tag}"):
            del fake.content.tags[name]
    found = find(fake, "1", "3")
    assert labels(found) == ["1", "3"]
    assert excluded(found) == {"2": "no image for linux/amd64 (has linux/arm64/v8)"}
    assert len(find(fake, "1", "3", platform="linux/arm64").candidates) == 3
    with pytest.raises(UsageError, match="tag 2 cannot be an end: no image for linux/amd64"):
        find(fake, "1", "2")


def test_an_image_of_another_platform_without_an_index_is_left_out(
    fake: fakes.FakeRegistry,
) -> None:
    for tag, architecture in (("1", "amd64"), ("2", "arm64"), ("3", "amd64")):
        fake.content.image(tag, {"TAG": tag}, architecture=architecture)
    assert excluded(find(fake, "1", "3")) == {"2": "no image for linux/amd64 (has linux/arm64)"}


def test_a_tag_removed_after_it_was_listed_is_left_out(fake: fakes.FakeRegistry) -> None:
    for tag in ("1", "2", "3"):
        fake.content.image(tag, {"TAG": tag})
    del fake.content.manifests[fake.content.tags["2"]]
    assert excluded(find(fake, "1", "3")) == {"2": "listed, but not there: manifest unknown"}


def test_creation_dates_give_an_order_on_request(fake: fakes.FakeRegistry) -> None:
    dates = {
        "b": "2026-01-02T00:00:00Z",
        "a": "2026-01-03T00:00:00.5Z",
        "c": "2026-01-01T00:00:00Z",
    }
    dates["d"] = "2026-01-03T00:00:00.123456789Z"
    for tag, created in dates.items():
        fake.content.image(tag, {"TAG": tag}, created=created)
    assert labels(find(fake, "c", "a", order="created")) == ["c", "b", "d", "a"]


def test_dates_that_are_stand_ins_are_no_order(fake: fakes.FakeRegistry) -> None:
    fake.content.image("1", {"TAG": "1"}, created="1970-01-01T00:00:00Z")
    fake.content.image("2", {"TAG": "2"})
    with pytest.raises(UsageError, match=r"no real creation date \(1"):
        find(fake, "1", "2", order="created")


def test_a_list_gives_its_own_order(fake: fakes.FakeRegistry, tmp_path: Path) -> None:
    for tag in ("red", "green", "blue"):
        fake.content.image(tag, {"TAG": tag})
    file = tmp_path / "list"
    file.write_text("# first\nred\nblue  # then\n\ngone\ngreen\n")
    found = find(fake, "red", "green", listed=tags.read_list(file))
    assert labels(found) == ["red", "blue", "green"]
    assert excluded(found) == {"gone": "in --list, but the registry has no such tag"}
    with pytest.raises(UsageError, match="missing there"):
        find(fake, "red", "green", listed=("red", "blue"))
    file.write_text("# nothing\n")
    with pytest.raises(UsageError, match="found none"):
        tags.read_list(file)


def test_an_end_that_does_not_exist_offers_the_nearest(fake: fakes.FakeRegistry) -> None:
    for tag in ("24.01-py3", "24.02-py3", "24.04-py3"):
        fake.content.image(tag, {"TAG": tag})
    with pytest.raises(UsageError, match=r"--good: tag .* '24\.03-py3' does not exist; nearest: "):
        find(fake, "24.03-py3", "24.04-py3")
    with pytest.raises(UsageError) as raised:
        find(fake, "24.01-py3", "24.03-py3")
    assert "24.02-py3" in str(raised.value)
    assert "24.04-py3" in str(raised.value)


def test_an_end_without_a_version_needs_another_order(fake: fakes.FakeRegistry) -> None:
    for tag in ("stable", "2"):
        fake.content.image(tag, {"TAG": tag})
    with pytest.raises(UsageError, match="--order created"):
        find(fake, "stable", "2")


def test_a_repository_that_does_not_exist_is_said(fake: fakes.FakeRegistry) -> None:
    repository = reference.parse(f"{fake.host}/team/other")
    with pytest.raises(UsageError, match="does not exist"):
        tags.space(Registry(repository, lambda: None), repository, tags.Wanted("1", "2"))
    with pytest.raises(UsageError, match="has no tags"):
        find(fake, "1", "2")


def test_what_the_configs_say_before_a_layer_is_pulled(fake: fakes.FakeRegistry) -> None:
    fake.content.image("1", {"PYTORCH_VERSION": "2.7", "SAME": "x", "API_TOKEN": "secret-1"})
    fake.content.image("2", {"PYTORCH_VERSION": "2.8", "SAME": "x", "CUDA_VERSION": "13"})
    found = find(fake, "1", "2")
    assert tags.env_difference(*found.candidates) == {
        "API_TOKEN": ["<hidden>", None],
        "CUDA_VERSION": [None, "13"],
        "PYTORCH_VERSION": ["2.7", "2.8"],
    }
    assert not any("/blobs/" in path and "layer" in path for path, _ in fake.requests)
