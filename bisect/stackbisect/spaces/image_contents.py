"""What is in an image: Python distributions, Debian packages, environment; and how two differ.

Read from the image's exported file system in one pass, so that nothing of the image runs: images
that cannot start, have no shell or no Python can be read too.
"""

from __future__ import annotations

import email.parser
import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from stackbisect.runtimes.archive import members
from stackbisect.runtimes.container_options import hide_secret

Difference = dict[str, dict[str, list[str | None]]]

FORMAT = 1
"""Version of the cached form; a cache of another version is read anew."""

_DPKG_STATUS = "var/lib/dpkg/status"
_DPKG_FOLDER = "var/lib/dpkg/status.d"
_METADATA_LIMIT = 4 << 20
"""Metadata above this many bytes is cut: headers come first, the rest is a long description."""


@dataclass(frozen=True)
class Contents:
    """What one image holds, by name; a version says more than a number where it must.

    `distributions`: normalised name → version; two builds of one version differ in the suffix
    ` (files 1a2b3c4d)` that `difference` adds; a name found in several site-packages has all
    versions. `files`: distribution → digest of its RECORD. `packages`: Debian name → version.
    `environment`: the image config's variables, secrets hidden.
    """

    distributions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The contents as plain JSON values, the form that is cached by image digest."""
        return {
            "format": FORMAT,
            "distributions": dict(self.distributions),
            "files": dict(self.files),
            "packages": dict(self.packages),
            "environment": dict(self.environment),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Contents | None:
        """The inverse of `to_json`; None for another version of the form."""
        if value.get("format") != FORMAT:
            return None
        return cls(value["distributions"], value["files"], value["packages"], value["environment"])


def read(export: Iterable[bytes], environment: Iterable[str]) -> Contents:
    """Read the contents from an exported file system (tar chunks) and the config's `Env`."""
    texts = list(environment)
    found = _Found(python_path(texts))
    for info, content in members(export):
        path = _plain(info.name)
        if content is not None:
            found.take(path, content)
        elif info.islnk():
            found.take_link(path, _plain(info.linkname))
    return Contents(
        found.versions(), dict(sorted(found.files.items())), found.packages, variables(texts)
    )


def _plain(name: str) -> PurePosixPath:
    """A member's name without a leading slash or dot folder."""
    return PurePosixPath("/", name).relative_to("/")


def python_path(environment: Iterable[str]) -> frozenset[PurePosixPath]:
    """Return the folders of the config's own PYTHONPATH, written as the archive names them."""
    values = [text.partition("=")[2] for text in environment if text.startswith("PYTHONPATH=")]
    folders = [folder for value in values for folder in value.split(":")]
    return frozenset(_plain(folder) for folder in folders if folder.startswith("/"))


def variables(environment: Iterable[str]) -> dict[str, str]:
    """Return the config's `Env` texts by name, in order of the names, secrets hidden."""
    pairs = (hide_secret(text).partition("=") for text in environment)
    return dict(sorted((name, value) for name, _, value in pairs))


def difference(good: Contents, bad: Contents) -> Difference:
    """Return what differs: kind, then name, then [value in good, value in bad]; None is absent."""
    return {
        "distributions": _differing(_builds(good, bad), _builds(bad, good)),
        "packages": _differing(good.packages, bad.packages),
        "environment": _differing(good.environment, bad.environment),
    }


def _differing(good: Mapping[str, str], bad: Mapping[str, str]) -> dict[str, list[str | None]]:
    names = sorted(set(good) | set(bad))
    return {
        name: [good.get(name), bad.get(name)] for name in names if good.get(name) != bad.get(name)
    }


def _builds(one: Contents, other: Contents) -> dict[str, str]:
    """Versions of `one`, marked where `other` has the same version made of other files."""
    found = {}
    for name, version in one.distributions.items():
        digests = one.files.get(name), other.files.get(name)
        rebuilt = version == other.distributions.get(name) and digests[0] != digests[1]
        found[name] = f"{version} (files {digests[0]})" if rebuilt and all(digests) else version
    return found


class _Found:
    """What one pass over an image's files has found so far.

    Installers that keep a cache (conda, uv) link from it into site-packages, and an archive holds
    only the first name's content: the texts are remembered until a link names them.
    """

    def __init__(self, folders: frozenset[PurePosixPath]) -> None:
        self.packages: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self._folders = folders
        self._places: dict[str, dict[str, str]] = {}
        self._texts: dict[PurePosixPath, str] = {}

    def take(self, path: PurePosixPath, content: io.RawIOBase) -> None:
        """Read one regular file where it says something."""
        if str(path) == _DPKG_STATUS or str(path.parent) == _DPKG_FOLDER:
            if path.suffix != ".md5sums":
                self.packages.update(debian_packages(_text(content)))
        elif _is_metadata(path):
            text = _text(content, _METADATA_LIMIT)
            self._texts[path] = text
            self._take_metadata(path, text)

    def take_link(self, path: PurePosixPath, target: PurePosixPath) -> None:
        """Read a second name of a file that was taken before."""
        text = self._texts.get(target)
        if text is not None and _is_metadata(path):
            self._texts[path] = text
            self._take_metadata(path, text)

    def _take_metadata(self, path: PurePosixPath, text: str) -> None:
        place = path if path.suffix == ".egg-info" else path.parent
        if not self._importable(place.parent):
            return
        if path.name == "RECORD":
            self.files[normalised(place.stem.rpartition("-")[0])] = record_digest(text)
            return
        headers = email.parser.HeaderParser().parsestr(text)
        stem = place.stem.split("-")
        name = headers.get("Name") or stem[0]
        version = headers.get("Version") or (stem[1] if len(stem) > 1 else "unknown")
        self._places.setdefault(normalised(name), {})[str(place.parent)] = version

    def _importable(self, folder: PurePosixPath) -> bool:
        if folder in self._folders:
            return True
        return folder.name in ("site-packages", "dist-packages") and "pkgs" not in folder.parts

    def versions(self) -> dict[str, str]:
        """Name → version, or every version with its place where they differ."""
        found = {}
        for name, places in sorted(self._places.items()):
            several = len(set(places.values())) > 1
            texts = [f"{version} in /{place}" for place, version in sorted(places.items())]
            found[name] = ", ".join(texts) if several else next(iter(places.values()))
        return found


def _text(content: io.RawIOBase, limit: int = -1) -> str:
    return (content.read(limit) or b"").decode("utf-8", "replace")


def _is_metadata(path: PurePosixPath) -> bool:
    """True for the files that describe one distribution, wherever they lie."""
    if path.parent.suffix == ".dist-info":
        return path.name in ("METADATA", "RECORD")
    if path.parent.suffix == ".egg-info":
        return path.name == "PKG-INFO"
    return path.suffix == ".egg-info"


def normalised(name: str) -> str:
    """Return a distribution's name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def record_digest(record: str) -> str:
    """Return 8 hex digits over the hashes of a wheel's files.

    Compiled files and the lines an installer adds have no hash or differ by installer, so only
    hashed files outside the metadata folder count: the same wheel gives the same digest anywhere.
    """
    rows = (line.rsplit(",", 2) for line in record.splitlines())
    kept = sorted(
        ",".join(row[:2])
        for row in rows
        if len(row) == 3 and row[1] and ".dist-info/" not in row[0] and not row[0].startswith("..")
    )
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:8]


def debian_packages(status: str) -> dict[str, str]:
    """Return what a dpkg `status` text says is installed: name (`:arch` if foreign) → version."""
    found: dict[str, str] = {}
    for paragraph in re.split(r"\n\s*\n", status):
        fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", paragraph, re.MULTILINE))
        installed = fields.get("Status", "install ok installed").endswith(" installed")
        if not installed or "Package" not in fields or "Version" not in fields:
            continue
        name = fields["Package"]
        if name in found and found[name] != fields["Version"]:
            name = f"{name}:{fields.get('Architecture', '')}"
        found[name] = fields["Version"]
    return found


def dumps(contents: Contents) -> str:
    """Return the cached text of one image's contents."""
    return json.dumps(contents.to_json(), indent=1, sort_keys=True) + "\n"


def loads(text: str) -> Contents | None:
    """Return cached contents; None where they are torn or of another version."""
    try:
        value = json.loads(text)
        return Contents.from_json(value) if isinstance(value, dict) else None
    except (ValueError, KeyError):
        return None
