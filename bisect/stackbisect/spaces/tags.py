"""Tags of a container repository as candidates: listed, ordered, resolved, duplicates merged.

Tags are names that move. A candidate is the platform's manifest digest, and everything later goes
by that digest. Two neighbouring tags with one digest are one candidate; a digest that comes back
further on (a tag that was rolled back) keeps its places and is tried once for all of them.
"""

from __future__ import annotations

import platform as host_platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stackbisect.errors import UsageError
from stackbisect.probe import Candidate
from stackbisect.runtimes.container_options import hide_secret
from stackbisect.spaces import registry, versions, window
from stackbisect.spaces.reference import Repository
from stackbisect.spaces.registry import NotFound, Registry

Order = Literal["version", "created"]

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x"}
# Creation dates before this are stand-ins of reproducible builds (1970, year 1).
_OLDEST = "1990"


@dataclass(frozen=True)
class Wanted:
    """Which tags: `pattern` filters by regular expression, `listed` gives names in their order.

    `good` is None where the good end is to be found: all from the oldest on are candidates then.
    """

    good: str | None
    bad: str
    pattern: str | None = None
    order: Order = "version"
    listed: tuple[str, ...] | None = None
    platform: str = ""

    @property
    def ends(self) -> list[tuple[str, str]]:
        """The ends that were named, each with its option."""
        good = [] if self.good is None else [("--good", self.good)]
        return [*good, ("--bad", self.bad)]


@dataclass(frozen=True)
class Image:
    """What a tag is, without its layers. `created` is ISO 8601; `size` is bytes to download."""

    tag: str
    digest: str
    created: str
    env: tuple[str, ...]
    labels: Mapping[str, str]
    entrypoint: tuple[str, ...]
    size: int


class Missing(Exception):
    """A tag that is no image here; the text is the reason."""


Tell = Callable[[int, int], None]


def default_platform() -> str:
    """This machine's platform as registries name it."""
    machine = host_platform.machine()
    return f"linux/{_ARCHITECTURES.get(machine, machine)}"


def read_list(path: Path) -> tuple[str, ...]:
    """Tags from a file, one a line, in the order they are to be searched; `#` begins a comment."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--list {path}: {error.strerror}") from error
    names = [line.partition("#")[0].strip() for line in text.splitlines()]
    found = tuple(dict.fromkeys(name for name in names if name))
    if not found:
        raise UsageError(f"--list {path}: expected one tag a line, found none")
    return found


def space(
    client: Registry, repository: Repository, wanted: Wanted, tell: Tell = lambda done, of: None
) -> window.Space:
    """The images from the good end to the bad end."""
    listed = client_tags(client, repository)
    _check_ends(wanted, listed, repository)
    names, excluded, notes = _select(wanted, listed)
    platform = wanted.platform or default_platform()
    if wanted.order == "version" or wanted.listed is not None:
        names, more = window.cut(names, wanted.good, wanted.bad)
        inside = set(names)
        excluded = [each for each in excluded if _belongs(each["label"], inside, wanted)]
        images, missing = _resolve(client, names, platform, wanted, tell)
    else:
        images, missing = _resolve(client, names, platform, wanted, tell)
        images = _by_creation(images)
        names, more = window.cut([image.tag for image in images], wanted.good, wanted.bad)
        by_tag = {image.tag: image for image in images}
        images = [by_tag[name] for name in names]
    notes = [*notes, *more, *_form_note(names)]
    candidates = _candidates(images, repository, platform, wanted)
    return window.Space(candidates, (*excluded, *missing), tuple(notes))


def client_tags(client: Registry, repository: Repository) -> list[str]:
    """The repository's tags. Raises UsageError where there is no such repository."""
    try:
        found = client.tags()
    except NotFound:
        raise UsageError(f"{repository.name} does not exist; check host and name") from None
    if not found:
        raise UsageError(f"{repository.name} has no tags")
    return found


def resolve(client: Registry, tag: str, platform: str) -> Image:
    """Look a tag up: index, platform manifest, config. Raises Missing."""
    try:
        manifest = client.manifest(tag)
        if manifest.media_type in registry.INDEX_TYPES:
            digest = registry.pick_platform(manifest.value, platform)
            if digest is None:
                has = ", ".join(registry.platforms(manifest.value)) or "none"
                raise Missing(f"no image for {platform} (has {has})")
            manifest = client.manifest(digest)
        if manifest.media_type not in registry.MANIFEST_TYPES:
            raise Missing(f"its manifest is of a kind that cannot be run: {manifest.media_type}")
        config = client.config(str(manifest.value["config"]["digest"]))
    except NotFound as error:
        raise Missing(f"listed, but not there: {error}") from None
    except (KeyError, TypeError) as error:
        raise Missing(f"its manifest lacks {error}") from None
    own = f"{config.get('os', 'linux')}/{config.get('architecture', '')}"
    if config.get("architecture") and own != "/".join(platform.split("/")[:2]):
        raise Missing(f"no image for {platform} (has {own})")
    return _image(tag, manifest, config)


def _image(tag: str, manifest: registry.Blob, config: Mapping[str, Any]) -> Image:
    inner = config.get("config") or {}
    layers = manifest.value.get("layers") or ()
    return Image(
        tag=tag,
        digest=manifest.digest,
        created=str(config.get("created") or ""),
        env=tuple(inner.get("Env") or ()),
        labels=dict(inner.get("Labels") or {}),
        entrypoint=tuple(inner.get("Entrypoint") or ()),
        size=sum(int(layer.get("size") or 0) for layer in layers),
    )


def _check_ends(wanted: Wanted, listed: Sequence[str], repository: Repository) -> None:
    for option, tag in wanted.ends:
        if tag not in listed:
            raise window.no_such(f"{option}: tag {repository.name}", tag, listed)
        if wanted.listed is not None and tag not in wanted.listed:
            raise UsageError(f"{option} {tag}: expected it in --list, found it missing there")


def _select(
    wanted: Wanted, listed: Sequence[str]
) -> tuple[list[str], list[Mapping[str, str]], list[str]]:
    """Names to look at in their order, what was left out, and notes."""
    ends = [tag for _, tag in wanted.ends]
    excluded: list[Mapping[str, str]] = []
    known = set(listed)
    names = list(listed) if wanted.listed is None else list(wanted.listed)
    for name in names:
        if name not in known:
            excluded.append(
                {"label": name, "reason": "in --list, but the registry has no such tag"}
            )
    names = [name for name in names if name in known]
    if wanted.pattern is not None:
        pattern = _compiled(wanted.pattern)
        dropped = [n for n in names if n not in ends and not pattern.search(n)]
        names = [name for name in names if name not in dropped]
        excluded.extend({"label": n, "reason": "does not match --tags"} for n in dropped)
    if wanted.listed is not None or wanted.order == "created":
        return names, excluded, []
    keys = {name: versions.tag_key(name) for name in names}
    for option, tag in wanted.ends:
        if keys[tag] is None:
            raise UsageError(
                f"{option} {tag}: expected a tag with a version in it, found none; "
                "give --order created, or the tags in their order with --list FILE"
            )
    excluded.extend({"label": n, "reason": "no version in its name"} for n in names if not keys[n])
    ordered = sorted((key, name) for name, key in keys.items() if key is not None)
    return [name for _, name in ordered], excluded, []


def _belongs(label: str, inside: set[str], wanted: Wanted) -> bool:
    """Whether a tag that was left out would lie between the ends, or nobody can tell."""
    key = versions.tag_key(label)
    ends = [versions.tag_key(tag) for _, tag in wanted.ends]
    if wanted.listed is not None or key is None or None in ends:
        return True
    known = sorted(end for end in ends if end is not None)
    low = () if wanted.good is None else known[0]
    return low < key < known[-1] and label not in inside


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--tags {pattern!r} is no regular expression: {error}") from None


def _resolve(
    client: Registry, names: Sequence[str], platform: str, wanted: Wanted, tell: Tell
) -> tuple[list[Image], list[Mapping[str, str]]]:
    images: list[Image] = []
    missing: list[Mapping[str, str]] = []
    for done, name in enumerate(names):
        tell(done, len(names))
        try:
            images.append(resolve(client, name, platform))
        except Missing as error:
            if name in (wanted.good, wanted.bad):
                raise UsageError(f"tag {name} cannot be an end: {error}") from None
            missing.append({"label": name, "reason": str(error)})
    tell(len(names), len(names))
    return images, missing


def _by_creation(images: Sequence[Image]) -> list[Image]:
    undated = [image.tag for image in images if image.created < _OLDEST]
    if undated:
        raise UsageError(
            f"--order created: {len(undated)} of {len(images)} images have no real creation date "
            f"({', '.join(undated[:3])}, ...); use --order version or --list FILE"
        )
    return sorted(images, key=lambda i: (_moment(i.created), versions.tag_key(i.tag) or (), i.tag))


def _moment(created: str) -> str:
    """A date that sorts: fractions of a second have any length, so they are cut to nine digits."""
    match = re.fullmatch(r"(.*?)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)?", created)
    if match is None:
        return created
    return f"{match[1]}.{(match[2] or '').ljust(9, '0')[:9]}"


def _form_note(names: Sequence[str]) -> list[str]:
    forms: dict[str, int] = {}
    for name in names:
        forms[versions.form(name)] = forms.get(versions.form(name), 0) + 1
    if len(forms) < 2:
        return []
    listed = ", ".join(
        f"{form} ({count})" for form, count in sorted(forms.items(), key=lambda item: -item[1])[:5]
    )
    return [f"tags of {len(forms)} forms are candidates: {listed}; --tags REGEX narrows them"]


def _candidates(
    images: Sequence[Image], repository: Repository, platform: str, wanted: Wanted
) -> tuple[Candidate, ...]:
    groups: list[list[Image]] = []
    for image in images:
        if groups and groups[-1][0].digest == image.digest:
            groups[-1].append(image)
        else:
            groups.append([image])
    found = [_candidate(group, repository, platform, p, wanted) for p, group in enumerate(groups)]
    return tuple(found)


def _candidate(
    group: Sequence[Image], repository: Repository, platform: str, position: int, wanted: Wanted
) -> Candidate:
    tags = [image.tag for image in group]
    named = next((tag for tag in tags if tag in (wanted.good, wanted.bad)), tags[0])
    first = group[0]
    return Candidate(
        id=first.digest,
        label=named,
        position=position,
        details={
            "reference": f"{repository.name}@{first.digest}",
            "tags": tags,
            "platform": platform,
            "created": first.created,
            "env": [hide_secret(text) for text in first.env],
            "labels": dict(first.labels),
            "entrypoint": list(first.entrypoint),
            "size": first.size,
        },
    )


def env_difference(good: Candidate, bad: Candidate) -> dict[str, list[str | None]]:
    """What the ends' configs say about versions before a layer is pulled."""
    left, right = (_variables(each.details.get("env") or ()) for each in (good, bad))
    return {
        name: [left.get(name), right.get(name)]
        for name in sorted({*left, *right})
        if left.get(name) != right.get(name)
    }


def _variables(texts: Sequence[str]) -> dict[str, str]:
    return {name: value for name, _, value in (text.partition("=") for text in texts)}
