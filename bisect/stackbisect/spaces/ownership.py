"""Which files of an image belong to which Python distribution or Debian package.

Each installer's own lists say it: RECORD (wheels, conda), installed-files.txt (eggs), dpkg's
NAME.list. What the system does with such files afterwards belongs to them too: compiled `.pyc`
files, and what Debian's alternatives point at them.
"""

from __future__ import annotations

import base64
import csv
import email.parser
import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

from stackbisect.spaces import image_contents, image_files, pins
from stackbisect.spaces.image_contents import normalised
from stackbisect.spaces.image_files import DPKG, ImageFiles

STATUS = f"{DPKG}/status"
_ALTERNATIVES = f"{DPKG}/alternatives"
_CURRENT = "etc/alternatives"
_METADATA = ("METADATA", "PKG-INFO")
_EXACT = re.compile(r"^\s*([a-z0-9][a-z0-9.+-]*)(?::[a-z0-9-]+)?\s*\(=\s*[^)]+\)\s*$")


@dataclass(frozen=True)
class Part:
    """One distribution or package of one image. Paths are canonical; folders are left out.

    `content`: a digest over what is in its files, wherever it is installed. `pins`: names of the
    same kind that it needs at exactly one version. `switches`: those of its paths that choose it
    among alternatives. `source`: what it was built from together with others.
    """

    name: str
    version: str
    paths: frozenset[str]
    content: str
    pins: tuple[str, ...] = ()
    switches: frozenset[str] = frozenset()
    source: str = ""
    stanza: str = ""


@dataclass(frozen=True)
class Owned:
    """An image's files and their owners. `by_package`: distributions that dpkg installed, by it.

    `environment` holds the real values of the image's variables and is never written anywhere.
    """

    files: ImageFiles
    distributions: Mapping[str, Part]
    packages: Mapping[str, Part]
    by_package: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    @cached_property
    def owners(self) -> Mapping[str, frozenset[str]]:
        """Path → ids (`distribution:numpy`) of all it belongs to."""
        found: dict[str, set[str]] = {}
        for kind, parts in (("distribution", self.distributions), ("package", self.packages)):
            for name, part in parts.items():
                for path in part.paths:
                    found.setdefault(path, set()).add(f"{kind}:{name}")
        return {path: frozenset(names) for path, names in found.items()}


def read(files: ImageFiles, environment: Iterable[str]) -> Owned:
    """Find the owners. `environment` is the image config's `Env`."""
    texts = list(environment)
    packages = _packages(files)
    places = dict(_metadata(files, image_contents.python_path(texts)))
    owner = {path: name for name, part in packages.items() for path in part.paths}
    by_package: dict[str, str] = {}
    by_name: dict[str, dict[str, str]] = {}
    for path, text in places.items():
        name, version = _name_and_version(path, text)
        debian = owner.get(files.canonical(path))
        if debian is None:
            by_name.setdefault(name, {})[path] = version
        else:
            by_package[name] = debian
    return Owned(
        files=files,
        distributions=_distributions(files, by_name),
        packages=packages,
        by_package=by_package,
        environment={name: value for name, _, value in (text.partition("=") for text in texts)},
    )


# -- Python distributions --------------------------------------------------------------------------


def _metadata(files: ImageFiles, folders: frozenset[PurePosixPath]) -> Iterator[tuple[str, str]]:
    """The metadata files of what Python would find, with their texts."""
    for path, text in files.texts.items():
        place = PurePosixPath(path)
        if place.suffix != ".egg-info":
            if place.name not in _METADATA:
                continue
            place = place.parent
        site = place.parent
        known = site.name in ("site-packages", "dist-packages") and "pkgs" not in site.parts
        if known or site in folders:
            yield path, text


def _name_and_version(path: str, text: str) -> tuple[str, str]:
    headers = email.parser.HeaderParser().parsestr(text)
    place = PurePosixPath(path)
    stem = (place if place.suffix == ".egg-info" else place.parent).stem.split("-")
    version = headers.get("Version") or (stem[1] if len(stem) > 1 else "unknown")
    return normalised(headers.get("Name") or stem[0]), version


def _distributions(files: ImageFiles, by_name: Mapping[str, Mapping[str, str]]) -> dict[str, Part]:
    """Each distribution with its files.

    Where several list one file, it is of those whose list has the digest of what is there: they
    wrote it last. Where none has, nobody can tell, and it is of all.
    """
    listed = {name: _listed(files, by_name[name]) for name in sorted(by_name)}
    wrote = {path for paths in listed.values() for path, own in paths.items() if own}
    return {
        name: _distribution(
            files, name, by_name[name], {p for p, own in paths.items() if own or p not in wrote}
        )
        for name, paths in listed.items()
    }


def _listed(files: ImageFiles, places: Iterable[str]) -> dict[str, bool]:
    """The paths of a distribution, and whether RECORD has the digest of what is there."""
    found = {path: False for metadata in places for path in _paths_of(files, metadata)}
    for metadata in places:
        record = files.texts.get(f"{_place(metadata)}/RECORD", "")
        for row in csv.reader(record.splitlines()):
            if len(row) > 1 and row[1].startswith("sha256="):
                path = _path_in(files, _site(metadata), row[0])
                if path in found:
                    found[path] |= files.entries[path].mark == _mark(row[1][7:])
    return found


def _mark(digest: str) -> str:
    """A digest of RECORD (base64) as an image's files have it; "" for what is none."""
    try:
        return base64.urlsafe_b64decode(f"{digest}==").hex()[: image_files.DIGEST]
    except ValueError:
        return ""


def _distribution(files: ImageFiles, name: str, places: Mapping[str, str], paths: set[str]) -> Part:
    required: list[str] = []
    for path in places:
        headers = email.parser.HeaderParser().parsestr(files.texts[path])
        required += headers.get_all("Requires-Dist") or []
    several = len(set(places.values())) > 1
    shown = [f"{version} in /{_site(path)}" for path, version in sorted(places.items())]
    sites = [files.canonical(_site(path)) for path in sorted(places)]
    return Part(
        name=name,
        version=", ".join(shown) if several else next(iter(places.values())),
        paths=frozenset(paths | compiled(files, paths)),
        content=_content(files, _below_sites(paths, sites)),
        pins=pins.pinned(required),
    )


def _place(metadata: str) -> str:
    """The folder (or, for old eggs, the one file) that describes the distribution."""
    return metadata if metadata.endswith(".egg-info") else posixpath.dirname(metadata)


def _site(metadata: str) -> str:
    return posixpath.dirname(_place(metadata))


def _paths_of(files: ImageFiles, metadata: str) -> Iterator[str]:
    place, site = _place(metadata), _site(metadata)
    described = [*files.below(place), place]
    yield from (files.canonical(path) for path in described if _is_file(files, path))
    record = files.texts.get(f"{place}/RECORD")
    if record is not None:
        listed = (row[0] for row in csv.reader(record.splitlines()) if row)
        yield from _there(files, site, listed)
        return
    listed_by_setuptools = files.texts.get(f"{place}/installed-files.txt")
    if listed_by_setuptools is not None:
        yield from _there(files, place, listed_by_setuptools.splitlines())
        return
    yield from _modules(files, site, files.texts.get(f"{place}/top_level.txt", "").split())


def _there(files: ImageFiles, folder: str, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        path = _path_in(files, folder, name)
        if _is_file(files, path):
            yield path


def _path_in(files: ImageFiles, folder: str, name: str) -> str:
    return files.canonical(posixpath.normpath(posixpath.join("/", folder, name)))


def _modules(files: ImageFiles, site: str, names: Sequence[str]) -> Iterator[str]:
    """What an egg without a list of its files most probably brought: its top-level modules."""
    for name in names:
        yield from (files.canonical(path) for path in files.below(f"{site}/{name}"))
        for other in files.children.get(site, ()):
            if other == f"{name}.py" or (other.startswith(f"{name}.") and other.endswith(".so")):
                yield files.canonical(f"{site}/{other}")


def _is_file(files: ImageFiles, path: str) -> bool:
    entry = files.entries.get(path)
    return entry is not None and entry.kind != "d"


def compiled(files: ImageFiles, paths: Iterable[str]) -> set[str]:
    """The cached bytecode of modules, by whatever Python, that stands beside them."""
    found: set[str] = set()
    stems: dict[str, set[str]] = {}
    for path in paths:
        if path.endswith(".py"):
            folder, _, name = path.rpartition("/")
            stems.setdefault(f"{folder}/__pycache__", set()).add(name[:-3])
    for folder, names in stems.items():
        for file in files.children.get(folder, ()):
            if file.partition(".")[0] in names and file.endswith(".pyc"):
                found.add(f"{folder}/{file}")
    return found


def _below_sites(paths: Iterable[str], sites: Iterable[str]) -> dict[str, str]:
    """Path → what it is called in its site-packages; what installers write themselves is left out.

    So the same wheel has the same content whoever installed it, and wherever.
    """
    found: dict[str, str] = {}
    for site in sites:
        for path in paths:
            if path.startswith(f"{site}/") and not re.search(r"\.pyc$|\.(dist|egg)-info", path):
                found[path] = path[len(site) + 1 :]
    return found


def _content(files: ImageFiles, names: Mapping[str, str]) -> str:
    """8 hex digits over what files (by path) are called and hold."""
    rows = sorted(
        f"{name} {files.entries[path].kind} {files.entries[path].mark}"
        for path, name in names.items()
    )
    return hashlib.sha256("\n".join(rows).encode("utf-8", "surrogateescape")).hexdigest()[:8]


# -- Debian packages -------------------------------------------------------------------------------


def stanzas(status: str) -> dict[str, str]:
    """dpkg's `status` by package, as `image_contents.debian_packages` names them."""
    found: dict[str, str] = {}
    for paragraph in re.split(r"\n\s*\n", status.strip("\n")):
        names = image_contents.debian_packages(paragraph)
        for name in names:
            architecture = _field(paragraph, "Architecture")
            found[f"{name}:{architecture}" if name in found else name] = paragraph
    return found


def _packages(files: ImageFiles) -> dict[str, Part]:
    status = files.texts.get(STATUS, "")
    folder = f"{DPKG}/status.d"
    lone = [text for path, text in files.texts.items() if posixpath.dirname(path) == folder]
    found = {}
    lists = _lists(files)
    chosen = list(_alternatives(files))
    for name, stanza in stanzas("\n\n".join([status, *lone])).items():
        found[name] = _package(files, name, stanza, lists, chosen)
    return found


def _lists(files: ImageFiles) -> dict[str, list[str]]:
    """Package as dpkg's files name it (`NAME`, `NAME:ARCH`) → its own files in dpkg's folder."""
    found: dict[str, list[str]] = {}
    for file in files.children.get(f"{DPKG}/info", ()):
        found.setdefault(file.rpartition(".")[0], []).append(f"{DPKG}/info/{file}")
    return found


def _package(
    files: ImageFiles,
    name: str,
    stanza: str,
    lists: Mapping[str, list[str]],
    chosen: Sequence[tuple[str, frozenset[str]]],
) -> Part:
    plain = name.partition(":")[0]
    keys = (f"{plain}:{_field(stanza, 'Architecture')}", plain)
    key = next((each for each in keys if each in lists), plain)
    text = files.texts.get(f"{DPKG}/info/{key}.list", "")
    paths = {path for path in map(files.canonical, text.splitlines()) if _is_file(files, path)}
    switches = {path for target, group in chosen if target in paths for path in group}
    own = {*lists.get(key, ()), f"{DPKG}/status.d/{plain}", f"{DPKG}/status.d/{plain}.md5sums"}
    every = paths | compiled(files, paths) | switches | {p for p in own if p in files.entries}
    return Part(
        name=name,
        version=_field(stanza, "Version"),
        paths=frozenset(every),
        content=_content(files, {path: path for path in paths if _is_packaged(path)}),
        pins=tuple(_pins(stanza)),
        switches=frozenset(switches),
        source=_field(stanza, "Source").partition(" ")[0] or plain,
        stanza=stanza,
    )


def _is_packaged(path: str) -> bool:
    """False for what is made or edited after a package is installed."""
    return not path.endswith(".pyc") and not path.startswith(("etc/", "var/"))


def _pins(stanza: str) -> Iterator[str]:
    for name in ("Depends", "Pre-Depends"):
        for each in _field(stanza, name).split(","):
            match = _EXACT.match(each)
            if match:
                yield match[1]


def _field(stanza: str, name: str) -> str:
    match = re.search(rf"^{name}:[ \t]*(.*)$", stanza, re.MULTILINE)
    return match[1].strip() if match else ""


def _alternatives(files: ImageFiles) -> Iterator[tuple[str, frozenset[str]]]:
    """What each group of Debian's alternatives leads to, and the paths that make it so.

    A file in dpkg's folder: the mode, the master's link, then a slave's name and link each, up to
    an empty line (update-alternatives(1)). The links lead to /etc/alternatives, those to the files.
    """
    for name in files.children.get(_ALTERNATIVES, ()):
        admin = f"{_ALTERNATIVES}/{name}"
        lines = files.texts.get(admin, "").splitlines()
        head = lines[1 : lines.index("")] if "" in lines else lines[1:]
        names = [name, *head[1::2]]
        links = [*head[:1], *head[2::2]]
        current = f"{_CURRENT}/{name}"
        if current not in files.entries:
            continue
        paths = {admin, *(f"{_CURRENT}/{each}" for each in names)}
        for link in map(files.canonical, links):
            entry = files.entries.get(link)
            if entry is not None and entry.kind == "l" and f"/{_CURRENT}/" in entry.mark:
                paths.add(link)
        target = files.canonical(files.entries[current].mark)
        yield target, frozenset(path for path in paths if path in files.entries)
