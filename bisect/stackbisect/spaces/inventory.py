"""What can be swapped between two images: the parts that differ, which of them belong together.

Distributions and Debian packages by their installers' lists; variables of the image's config; the
shared libraries that the workload loaded and no differing part owns, by family; on request every
other file that differs. Which paths a component means follows from the two images alone, so a
graft finds them again.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from stackbisect.runtimes.container_options import hide_secret
from stackbisect.spaces import pins
from stackbisect.spaces.components import Component, Inventory, Kind
from stackbisect.spaces.image_files import ImageFiles
from stackbisect.spaces.ownership import Owned, Part, compiled

HIDDEN = "<hidden>"
MOST_FILES = 40
"""How many components other files may be; where more differ, folders stand for what is in them."""

_FAMILY = re.compile(r"(?P<family>.+?\.so)(?:\.(?P<version>\d[\w.+~-]*))?")

# Written while an image is made or a container runs; nothing is computed with it.
_NOISE = re.compile(
    r"(?:.*/)?__pycache__/.*|.*\.pyc"
    r"|var/(?:cache|log|tmp|backups|lib/(?:apt|dpkg|systemd|ucf|pam))/.*"
    r"|(?:tmp|run|root/\.cache|home/[^/]+/\.cache)/.*"
    r"|etc/(?:ld\.so\.cache|machine-id|mtab|hostname|[^/]+-)"
    r"|usr/(?:local/)?share/(?:doc|man|info|locale|lintian)/.*"
    r"|.*\.dist-info/(?:INSTALLER|RECORD|REQUESTED|direct_url\.json|uv_cache\.json)"
)


def family(path: str) -> str | None:
    """A shared library's family: its file name without version; None for any other file."""
    match = _FAMILY.fullmatch(posixpath.basename(path))
    return match["family"] if match else None


def library_version(path: str) -> str:
    """What follows `.so.` in a library's name; "" where nothing does."""
    match = _FAMILY.fullmatch(posixpath.basename(path))
    return (match["version"] or "") if match else ""


@dataclass(frozen=True)
class Pair:
    """Two images and what differs between them."""

    good: Owned
    bad: Owned

    @cached_property
    def parts(self) -> tuple[Component, ...]:
        """The distributions and packages that differ."""
        return (
            *_differing("distribution", self.good.distributions, self.bad.distributions),
            *_differing("package", self.good.packages, self.bad.packages),
        )

    @cached_property
    def others(self) -> frozenset[str]:
        """Paths that differ and belong to no differing part at either end; folders are left out."""
        taken = {
            path
            for component in self.parts
            for end in (self.good, self.bad)
            for path in paths_of_part(component.kind, component.name, end)
        }
        good, bad = self.good.files.entries, self.bad.files.entries
        return frozenset(
            path
            for path in {*good, *bad} - taken
            if any(path in end and end[path].kind != "d" for end in (good, bad))
            and not _same(self.good.files, self.bad.files, path)
        )

    @cached_property
    def computed_with(self) -> frozenset[str]:
        """The others without what is written while an image is made."""
        return frozenset(path for path in self.others if not _NOISE.fullmatch(path))

    @cached_property
    def libraries(self) -> Mapping[str, frozenset[str]]:
        """Family → its paths among the others."""
        found: dict[str, set[str]] = {}
        for path in self.others:
            name = family(path)
            if name is not None:
                found.setdefault(name, set()).add(path)
        return {name: frozenset(paths) for name, paths in found.items()}

    def paths(self, component: Component, end: Owned) -> frozenset[str]:
        """The files of a component at one end; none for a variable.

        A file component whose name ends with / stands for every other file below it.
        """
        if component.kind in ("distribution", "package"):
            return paths_of_part(component.kind, component.name, end)
        if component.kind == "library":
            named = self.libraries.get(component.name, frozenset())
        elif component.name.endswith("/"):
            below = component.name[1:]
            named = frozenset(
                path
                for path in self.others
                if path.startswith(below) and not _NOISE.fullmatch(path)
            )
        else:
            named = frozenset((component.name[1:],)) if component.kind == "file" else frozenset()
        entries = end.files.entries
        there = frozenset(path for path in named if path in entries and entries[path].kind != "d")
        # Cached bytecode goes with its source: Python takes it where only time and size agree.
        return there | compiled(end.files, there)


def paths_of_part(kind: str, name: str, end: Owned) -> frozenset[str]:
    """The files of a distribution or package; none where it is not there."""
    part = (end.distributions if kind == "distribution" else end.packages).get(name)
    return part.paths if part is not None else frozenset()


def inventory(pair: Pair, loaded: Iterable[str], *, files: bool = False) -> Inventory:
    """What can be swapped. `loaded`: paths of the libraries that probes of both ends loaded."""
    grouped = pins.groups(
        [component.id for component in pair.parts],
        *(_pinned(end) for end in (pair.good, pair.bad)),
        _same_name(pair),
    )
    libraries = _libraries(pair, loaded)
    taken = {path for each in libraries for path in pair.libraries[each.name]}
    left = sorted(pair.computed_with - taken)
    others = _files(pair, left, taken) if files else []
    notes = [] if files or not left else [_files_note(left)]
    components = (
        *_in_order(pair, grouped),
        *libraries,
        *_environment(pair.good.environment, pair.bad.environment),
        *others,
    )
    return Inventory(components, (*grouped, *_releases(libraries)), tuple(notes))


def restricted(found: Inventory, only: Collection[str]) -> Inventory:
    """The inventory with nothing but the named components (ids), where any are named.

    What is named and does not differ is said in a note: it cannot be to blame.
    """
    if not only:
        return found
    components = tuple(each for each in found.components if each.id in only)
    kept = {each.id for each in components}
    groups = tuple(tuple(name for name in group if name in kept) for group in found.groups)
    notes = [f"{name} does not differ, or is no component" for name in sorted(set(only) - kept)]
    left = len(found.components) - len(components)
    if left:
        notes.append(f"{left} other components differ and stay as they are (--component)")
    return Inventory(
        components, tuple(group for group in groups if len(group) > 1), (*found.notes, *notes)
    )


# -- distributions and packages --------------------------------------------------------------------


def _differing(
    kind: Kind, good: Mapping[str, Part], bad: Mapping[str, Part]
) -> Iterator[Component]:
    for name in sorted({*good, *bad}):
        left, right = good.get(name), bad.get(name)
        if left is None or right is None:
            values = [None if part is None else part.version for part in (left, right)]
            yield Component(kind, name, *values)
        elif left.version != right.version:
            yield Component(kind, name, left.version, right.version)
        elif left.content != right.content:
            rebuilt = [f"{part.version} (files {part.content})" for part in (left, right)]
            yield Component(kind, name, *rebuilt)


def _pinned(end: Owned) -> dict[str, list[str]]:
    """What needs what at one version, by component id."""
    found = {}
    for kind, parts in (("distribution", end.distributions), ("package", end.packages)):
        for name, part in parts.items():
            found[f"{kind}:{name}"] = [f"{kind}:{other}" for other in part.pins]
    return found


def _same_name(pair: Pair) -> dict[str, list[str]]:
    """A distribution that pip installed at one end and dpkg at the other is one thing."""
    found: dict[str, list[str]] = {}
    for end in (pair.good, pair.bad):
        for name, package in end.by_package.items():
            found.setdefault(f"distribution:{name}", []).append(f"package:{package}")
    return found


def _in_order(pair: Pair, grouped: Sequence[Sequence[str]]) -> list[Component]:
    """Groups stay together, and packages that were built from one source."""
    first = {member: group[0] for group in grouped for member in group}

    def place(component: Component) -> tuple[str, str, str, str]:
        part = pair.good.packages.get(component.name) or pair.bad.packages.get(component.name)
        source = part.source if component.kind == "package" and part is not None else ""
        leader = first.get(component.id, f"{component.kind}:{source or component.name}")
        return leader.partition(":")[0], leader, source, component.name

    return sorted(pair.parts, key=place)


# -- shared libraries ------------------------------------------------------------------------------


def _libraries(pair: Pair, loaded: Iterable[str]) -> list[Component]:
    """The families among the others of which the workload loaded a file."""
    ends = (pair.good, pair.bad)
    wanted = {end.files.target(path) for path in loaded for end in ends}
    names = [name for name, paths in pair.libraries.items() if not paths.isdisjoint(wanted)]
    found = []
    for name in sorted(names):
        paths = pair.libraries[name]
        values = [_library_value(end.files, paths) for end in ends]
        found.append(Component("library", name, *values))
    return sorted(found, key=lambda each: (_folder(pair, each.name), _release(each), each.name))


def _folder(pair: Pair, name: str) -> str:
    return min(posixpath.dirname(path) for path in pair.libraries[name])


def _library_value(files: ImageFiles, paths: Iterable[str]) -> str | None:
    """The version in the names of a family's files, and a digest of what is in them."""
    real = [path for path in sorted(paths) if path in files.entries]
    if not real:
        return None
    marks = [f"{posixpath.basename(path)} {files.entries[path].mark}" for path in real]
    digest = hashlib.sha256("\n".join(marks).encode("utf-8", "surrogateescape")).hexdigest()[:8]
    versions = {library_version(path) for path in real if files.entries[path].kind == "f"} - {""}
    longest = max(versions, key=lambda text: (len(text), text), default="")
    return f"{longest} ({digest})".strip()


def _release(component: Component) -> tuple[str, str]:
    """The versions at both ends, where they are long enough to tell a release of several."""
    found = []
    for value in (component.good, component.bad):
        version = (value or "").partition(" ")[0]
        found.append(version if version.count(".") >= 2 else "")
    return found[0], found[1]


def _releases(libraries: Sequence[Component]) -> tuple[tuple[str, ...], ...]:
    """Families of one release: the parts of cuDNN, or cuBLAS and cuBLASLt, only go together.

    They have one version at both ends, and names of one beginning.
    """
    found: dict[tuple[str, ...], list[str]] = {}
    for each in libraries:
        release = _release(each)
        if all(release):
            found.setdefault((*release, each.name[:6]), []).append(each.id)
    return tuple(tuple(ids) for ids in found.values() if len(ids) > 1)


# -- variables and other files ---------------------------------------------------------------------


def _environment(good: Mapping[str, str], bad: Mapping[str, str]) -> Iterator[Component]:
    for name in sorted({*good, *bad}):
        left, right = good.get(name), bad.get(name)
        if left == right:
            continue
        shown = [None if value is None else _shown(name, value) for value in (left, right)]
        if shown[0] == shown[1]:
            shown[1] = f"{HIDDEN}, another one"
        yield Component("environment", name, *shown)


def _shown(name: str, value: str) -> str:
    return hide_secret(f"{name}={value}").partition("=")[2]


def _same(good: ImageFiles, bad: ImageFiles, path: str) -> bool:
    left, right = good.entries.get(path), bad.entries.get(path)
    if left is None or right is None:
        return left is right
    return (left.kind, left.mode, left.mark) == (right.kind, right.mode, right.mark)


def _files(pair: Pair, paths: Sequence[str], apart: Collection[str]) -> list[Component]:
    found = []
    for name in _grouped(paths, apart):
        held = [path for path in paths if path == name or _is_below(path, name)]
        values = [_files_value(end.files, held, name) for end in (pair.good, pair.bad)]
        found.append(Component("file", f"/{name}", *values))
    return found


def _is_below(path: str, name: str) -> bool:
    return name.endswith("/") and path.startswith(name)


def _grouped(paths: Sequence[str], apart: Collection[str] = ()) -> list[str]:
    """The paths themselves, or folders (with a / at the end) that hold many of them.

    The fullest folder is opened again and again as long as there are not too many groups. One that
    holds a path of another component (`apart`) is always opened: it would bring that one along.
    """
    groups = _opened(paths, "")
    while True:
        folders = [name for name in groups if name.endswith("/")]
        mixed = [name for name in folders if any(path.startswith(name) for path in apart)]
        fullest = max(mixed or folders, key=lambda name: (len(groups[name]), name), default=None)
        if fullest is None:
            return sorted(groups)
        inner = _opened(groups[fullest], fullest)
        if not mixed and len(groups) - 1 + len(inner) > MOST_FILES:
            return sorted(groups)
        del groups[fullest]
        groups.update(inner)


def _opened(paths: Collection[str], folder: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in paths:
        head, slash, _ = path[len(folder) :].partition("/")
        found.setdefault(f"{folder}{head}{slash}", []).append(path)
    return found


def _files_value(files: ImageFiles, paths: Sequence[str], name: str) -> str | None:
    there = [path for path in paths if path in files.entries]
    if not there:
        return None
    if not name.endswith("/"):
        entry = files.entries[name]
        return f"-> {entry.mark}" if entry.kind == "l" else entry.mark[:8] or entry.kind
    rows = [f"{path} {files.entries[path].mark} {files.entries[path].mode}" for path in there]
    digest = hashlib.sha256("\n".join(rows).encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{len(there)} files ({digest})"


def _files_note(paths: Sequence[str]) -> str:
    counts: dict[str, int] = {}
    for path in paths:
        folder = "/" + "/".join(path.split("/")[:2]) if path.count("/") > 1 else f"/{path}"
        counts[folder] = counts.get(folder, 0) + 1
    most = sorted(counts, key=lambda name: (-counts[name], name))[:3]
    return (
        f"{len(paths)} other files differ, most in {', '.join(most)}; "
        "with --files they are components too"
    )
