"""Two generations of one stack that differ in forty components, made of what a test draws.

A generation is Debian with Python and on top: real wheels, wheels made here, Debian packages made
by dpkg-deb and installed by dpkg, shared libraries outside any package that ldconfig knows, and
environment variables. Each of our own parts sums the same numbers in an order of its own; the
workload takes its evidence from all of them, so the images' content alone decides who is to blame.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tests.stackbisect import images, services, wheels

Kind = Literal["distribution", "package", "library", "environment"]

REAL = {
    "attrs": ("24.2.0", "24.3.0"),
    "certifi": ("2024.7.4", "2024.8.30"),
    "click": ("8.1.7", "8.1.8"),
    "idna": ("3.7", "3.10"),
    "iniconfig": ("2.0.0", "2.1.0"),
    "packaging": ("24.1", "24.2"),
    "six": ("1.16.0", "1.17.0"),
    "tqdm": ("4.66.5", "4.67.1"),
    "typing_extensions": ("4.12.2", "4.13.2"),
    "zipp": ("3.19.2", "3.21.0"),
}
"""Small wheels from the index that no part of the workload imports."""

PARTS: Mapping[Kind, tuple[str, ...]] = {
    "distribution": tuple(f"part-{letter}" for letter in "abcdefghijklmn"),
    "package": tuple(f"parts-{name}" for name in ("data", "extra", "fonts", "lang", "tools")),
    "library": ("libblend.so", "libreduce.so"),
    "environment": tuple(f"PART_{name}" for name in ("CACHE", "LEVEL", "MODE", "PLAN", "TUNE")),
}
"""What can be to blame: every one of these is at both ends, of other versions or values."""

COUNT = len(REAL) + sum(map(len, PARTS.values())) + 2
"""How many components differ between two ends; two wheels are at one end only."""

WORD = "forward"
"""What a part says that changes nothing."""

WORK = """
import ctypes, glob, importlib, os, sys

VALUES = [1 / (k * 7919 % 1000 + 1) for k in range(1000)]
ORDERS = {"forward": list, "backward": lambda v: v[::-1], "by size": sorted}


def added(word, values):
    total = 0.0
    for value in ORDERS.get(word, list)(values):
        total += value
    return total


def library(path):
    loaded = ctypes.CDLL(path)  # by its name alone: ldconfig knows where it is
    loaded.total.restype = ctypes.c_double
    loaded.word.restype = ctypes.c_char_p
    return loaded


def parts():
    site = next(path for path in sys.path if path.endswith("dist-packages"))
    for name in sorted(os.listdir(site)):
        if name.startswith("part_") and "." not in name:
            module = importlib.import_module(name)
            yield name, module.WORD, module.total
    for path in sorted(glob.glob("/usr/share/parts/*")):
        word = open(path).read().split(":")[0]
        yield path, word, lambda values, word=word: added(word, values)
    for name in ("libblend.so.1", "libreduce.so.1"):
        loaded = library(name)
        array = lambda values: loaded.total((ctypes.c_double * len(values))(*values), len(values))
        yield name, loaded.word().decode(), array
    for name, value in sorted(os.environ.items()):
        if name.startswith("PART_"):
            word = value.split(":")[0]
            yield name, word, lambda values, word=word: added(word, values)


def products():
    if os.environ.get("WITH_NUMPY") != "1":
        return b""
    import numpy

    square = numpy.random.default_rng(0).standard_normal((200, 200))
    found = numpy.linalg.qr(square)[1], numpy.linalg.svd(square)[1], square @ square
    return b"".join(numpy.ascontiguousarray(each).tobytes() for each in found)


def run(fingerprint):
    for step in range(2):
        values, words, found = VALUES[step:], [], []
        for name, word, total in parts():
            words.append(word)
            found.append(total(values))
        # Two that change something together: neither does alone.
        both = {"left", "right"} <= set(words)
        found.append(added("backward" if both else "forward", values))
        fingerprint("total", repr(found).encode() + products())


if "--alone" in sys.argv:
    import hashlib

    whole = hashlib.sha256()
    run(lambda name, value: whole.update(value))
    print(whole.hexdigest())
else:
    import pinner

    run(pinner.fingerprint)
"""

_MODULE = '''"""Adds numbers in an order of its own."""

__version__ = "{version}"
WORD = "{word}"
{imports}

def total(values):
    found = 0.0
    for value in {expression}:
        found += value
    return found
'''

_LIBRARY = """
const char *word(void) { return "%s"; }
const char *version(void) { return "%s"; }
double total(const double *values, int count)
{
    double found = 0;
    for (int k = 0; k < count; k++)
        found += values[%s];
    return found;
}
"""


@dataclass(frozen=True)
class Part:
    """One of our own components. `word`: what it does; `imports`: a line of a Python part."""

    version: str
    word: str = WORD
    imports: str = ""


@dataclass(frozen=True)
class Generation:
    """What one image holds. `parts` by kind and name; `real`: 0 for the old wheels, 1 for the new.

    `only`: made wheels that the other end has not. `numpy`: its version, or None for none.
    `requires`: a made wheel's `Requires-Dist`.
    """

    parts: Mapping[tuple[Kind, str], Part]
    real: int = 0
    only: str = ""
    numpy: str | None = None
    requires: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def with_parts(self, **changed: Mapping[str, Part]) -> Generation:
        """The same with other parts: `with_parts(library={"libreduce.so": Part(...)})`."""
        parts = dict(self.parts)
        for kind, named in changed.items():
            parts.update({(kind, name): part for name, part in named.items()})  # type: ignore[misc]
        return replace(self, parts=parts)


def ends(numpy: tuple[str, str] | None = None) -> tuple[Generation, Generation]:
    """Two generations that differ in COUNT components (numpy is one more), all of them quiet."""
    found = []
    for end in (0, 1):
        parts = {
            (kind, name): Part(f"{end + 1}.{number}")
            for kind, names in PARTS.items()
            for number, name in enumerate(names)
        }
        only = "earlier-extra" if end == 0 else "later-extra"
        found.append(Generation(parts, end, only, numpy[end] if numpy else None))
    return found[0], found[1]


def blame(generation: Generation, words: Mapping[tuple[Kind, str], str]) -> Generation:
    """The generation with other words in some parts."""
    parts = dict(generation.parts)
    for key, word in words.items():
        parts[key] = replace(parts[key], word=word)
    return replace(generation, parts=parts)


def entangled(
    good: Generation, bad: Generation, provider: str, user: str, *, pinned: bool
) -> tuple[Generation, Generation]:
    """Two distributions of which one imports from the other what only its own generation has.

    `pinned`: they also require each other's exact version, as torch and triton do.
    """
    found = []
    for end, generation in enumerate((good, bad)):
        name = provider.replace("-", "_")
        parts = dict(generation.parts)
        key: tuple[Kind, str] = ("distribution", provider)
        parts[key] = replace(parts[key], imports=f"api_{end + 1} = True\n")
        requires = {user: [f"{provider}=={parts[key].version}"]} if pinned else {}
        key = ("distribution", user)
        parts[key] = replace(parts[key], imports=f"from {name} import api_{end + 1}\n")
        found.append(replace(generation, parts=parts, requires=requires))
    return found[0], found[1]


def image(generation: Generation, work: str = WORK) -> images.Image:
    """The image of a generation; its layers are made once and kept by their content."""
    layers = [
        images.files({"train.py": work}),
        _real(generation.real),
        _distributions(generation),
        _of_system("package", generation),
        _of_system("library", generation),
    ]
    if generation.numpy is not None:
        layers.insert(0, images.numpy(generation.numpy))
    env = {
        name: f"{part.word}:{part.version}"
        for (kind, name), part in sorted(generation.parts.items())
        if kind == "environment"
    }
    if generation.numpy is not None:
        env["WITH_NUMPY"] = "1"
    return images.Image(layers, env=env)


def broken(generation: Generation) -> images.Image:
    """An image whose workload cannot import what it needs."""
    return image(generation, "import no_such_module\n" + WORK)


def _real(end: int) -> images.Layer:
    """The layer of the real wheels."""
    pinned = [f"{name}=={versions[end]}" for name, versions in REAL.items()]
    with services.locked("real-wheels") as place:
        folder = place / "wheels" / hashlib.sha256(repr(pinned).encode()).hexdigest()[:12]
        if not folder.exists():
            images.download(pinned, folder.with_suffix(".draft"))
            folder.with_suffix(".draft").rename(folder)
    content: dict[str, str | bytes] = {}
    for path in sorted(folder.glob("*.whl")):
        content.update(_unpacked(path))
    return images.files(content)


def _unpacked(path: Path) -> dict[str, str | bytes]:
    with zipfile.ZipFile(path) as wheel:
        return {
            f"{images.SITE}/{name}": wheel.read(name)
            for name in wheel.namelist()
            if not name.endswith("/")
        }


def _distributions(generation: Generation) -> images.Layer:
    """The layer of the wheels made here, unpacked."""
    orders = {**wheels.ORDERS, "left": "values", "right": "values"}
    content: dict[str, str | bytes] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, part in _of_kind(generation, "distribution").items():
            module = name.replace("-", "_")
            source = _MODULE.format(**vars(part), expression=orders[part.word])
            requires = generation.requires.get(name, ())
            files = {f"{module}/__init__.py": source}
            wheel = wheels.write(Path(scratch), module, part.version, files, requires)
            content.update(_unpacked(wheel))
        extra = generation.only.replace("-", "_")
        wheel = wheels.write(Path(scratch), extra, "1.0", {f"{extra}/__init__.py": ""})
        content.update(_unpacked(wheel))
    return images.files(content)


def _of_kind(generation: Generation, kind: Kind) -> dict[str, Part]:
    return {name: part for (each, name), part in generation.parts.items() if each == kind}


def _of_system(kind: Literal["package", "library"], generation: Generation) -> images.Layer:
    """The layer of packages that dpkg has installed, or of libraries that ldconfig has found."""
    parts = _of_kind(generation, kind)
    recipe = repr([kind, sorted((name, repr(part)) for name, part in parts.items()), 1])
    name = hashlib.sha256(recipe.encode()).hexdigest()[:24]
    with services.locked("layers") as place:
        file = place / "layers" / f"{name}.tar.gz"
        file.parent.mkdir(exist_ok=True)
        if not file.exists():
            base = _base_tree(place)
            with tempfile.TemporaryDirectory(dir=place) as scratch:
                tree = Path(scratch, "tree")
                subprocess.run(["cp", "-al", str(base), str(tree)], check=True)
                (_install_packages if kind == "package" else _install_libraries)(parts, tree)
                _pack_what_is_new(tree, base, file)
    return images.described(file)


def _base_tree(place: Path) -> Path:
    """What dpkg and ldconfig want to see of the base image, unpacked once."""
    base = images.base().file
    left_out = ("usr/bin", "usr/sbin", "usr/share", "usr/lib/python3*", "*/gconv", "*/perl*")
    tree = place / (base.name.partition(".")[0] + "-tree")
    if not tree.exists():
        draft = tree.with_suffix(".draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        without = [f"--exclude=./{name}" for name in left_out]
        subprocess.run(["tar", "-xzf", str(base), "-C", str(draft), *without], check=True)
        draft.rename(tree)
    return tree


def _install_packages(parts: Mapping[str, Part], tree: Path) -> None:
    made = []
    for name, part in parts.items():
        root = tree.parent / name
        control = {
            "Package": name,
            "Version": part.version,
            "Architecture": "all",
            "Maintainer": "nobody <nobody@localhost>",
            "Description": "a part",
        }
        _text(root / "DEBIAN/control", "".join(f"{k}: {v}\n" for k, v in control.items()))
        _text(root / f"usr/share/parts/{name}", f"{part.word}:{part.version}\n")
        made.append(f"{root}.deb")
        _run("dpkg-deb", "--build", "--root-owner-group", "-Znone", str(root), made[-1])
    # dpkg's own records, as in any image; nothing of the tree runs.
    _run("dpkg", f"--root={tree}", "--force-all", "--no-triggers", "--install", *made)


def _install_libraries(parts: Mapping[str, Part], tree: Path) -> None:
    for family, part in parts.items():
        index = "count - 1 - k" if part.word == "backward" else "k"
        source = tree.parent / f"{family}.c"
        source.write_text(_LIBRARY % (part.word, part.version, index))
        whole = tree / "usr/local/lib" / f"{family}.1.{part.version}"
        soname = f"-Wl,-soname,{family}.1"
        _run("cc", "-shared", "-fPIC", soname, "-o", str(whole), str(source))
    _run("ldconfig", "-r", str(tree))


def _pack_what_is_new(tree: Path, base: Path, file: Path) -> None:
    """Write the layer: every file and link of the tree that is not the base's own."""
    new = []
    for folder, folders, names in os.walk(tree):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in (*names, *links):
            path = Path(folder, name)
            there = base / path.relative_to(tree)
            if not os.path.lexists(there) or there.lstat().st_ino != path.lstat().st_ino:
                new.append(str(path.relative_to(tree)))
    passing = ("var/log/", "var/cache/", "var/lib/dpkg/status-old")
    kept = sorted(name for name in new if not name.startswith(passing))
    draft = file.with_suffix(".draft")
    with draft.open("wb") as out:
        packed = subprocess.Popen(
            [
                *("tar", "--mtime=@0", "--numeric-owner", "--owner=0", "--group=0"),
                *("--no-recursion", "-C", str(tree), "-T", "-", "-c"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert packed.stdin is not None
        packed.stdin.write("\n".join(kept).encode())
        packed.stdin.close()
        subprocess.run(["gzip", "-1n"], stdin=packed.stdout, stdout=out, check=True)
        if packed.wait() != 0:
            raise services.ServiceMissing(f"tar failed over {tree}")
    draft.rename(file)


def _text(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def _run(*command: str) -> None:
    if shutil.which(command[0], path=_PATH) is None:
        raise services.ServiceMissing(f"needs the program {command[0]}")
    env = {**os.environ, "PATH": _PATH}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    if done.returncode != 0:
        end = (done.stdout + done.stderr).strip().splitlines()[-3:]
        raise services.ServiceMissing(f"{command[0]} failed: {' / '.join(end)}")


_PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/local/sbin:/usr/sbin:/sbin"
