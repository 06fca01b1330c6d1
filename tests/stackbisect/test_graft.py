"""A graft makes exactly what was asked equal to the donor, and leaves all else as it was.

The images are plain values (`invented_images`). A graft is carried out on them as a daemon would:
what must go is removed, then its tar is unpacked over what is there.
"""

from __future__ import annotations

import base64
import hashlib
import io
import shlex
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackbisect.spaces import graft as grafts
from stackbisect.spaces import wheel_graft
from stackbisect.spaces.components import Component
from stackbisect.spaces.graft import Copier, Graft
from stackbisect.spaces.inventory import Pair, inventory
from tests.stackbisect.invented_images import SITE, Deb, Invented, read, tar, wheel

LIB = "usr/lib/x86_64-linux-gnu"
Files = dict[str, str]


def _pair(good: Invented, bad: Invented) -> Pair:
    return Pair(good.owned(), bad.owned())


def _removed(graft: Graft) -> list[str]:
    """The paths of the script, as the shell reads them."""
    found = []
    for line in grafts.removal(graft).splitlines():
        words = shlex.split(line.partition(" 2>")[0])
        assert words[:2] in (["rmdir", "--"], ["rm", "-f"])
        found += [word for word in words[2:] if word != "--"]
    return found


def _carried_out(graft: Graft, donor: Mapping[str, str], base: Mapping[str, str]) -> Files:
    """The base's files after a graft. A folder that does not become empty is no fault."""
    pair_files = read(donor).files
    copier = Copier(graft)

    def pieces() -> Iterator[grafts.Piece]:
        yield from grafts.folders(graft, pair_files)
        for root in [*grafts.roots(pair_files, graft.copy), None]:
            for path in sorted(copier.missing) if root is None else [root]:
                under = {
                    name: text
                    for name, text in donor.items()
                    if name == path or name.startswith(f"{path}/")
                }
                parent = path.rpartition("/")[0]
                yield from copier.pieces(_alone(under, donor, parent), parent)
        assert not copier.missing

    gone = {path[1:] for path in _removed(graft)}
    alone = {p: base[t[3:]] if t.startswith("== ") else t for p, t in base.items()}
    found = {path: text for path, text in alone.items() if path not in gone}
    found.update(_unpacked(b"".join(grafts.tar(pieces()))))
    return {**found, **graft.write}


def _alone(under: Files, donor: Mapping[str, str], parent: str) -> Iterator[bytes]:
    """A daemon's tar of one path: a hard link to what is not in it is a file there."""
    inner = {}
    for path, text in under.items():
        twin = text.removeprefix("== ")
        inner[path] = donor[twin] if text.startswith("== ") and twin not in under else text
    return tar(inner, f"{parent}/" if parent else "")


def _unpacked(data: bytes) -> Files:
    found: Files = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for info in archive:
            if info.issym():
                found[info.name] = f"-> {info.linkname}"
            elif info.islnk():
                found[info.name] = found[info.linkname]
            elif info.isreg():
                content = archive.extractfile(info)
                assert content is not None
                found[info.name] = content.read().decode()
    return found


def _grafted(
    good: Invented, bad: Invented, chosen: Callable[[Component], bool], *loaded: str
) -> tuple[Files, Pair]:
    """The bad image with the chosen components of the good one, and the pair with the good one."""
    pair = _pair(good, bad)
    components = [c for c in inventory(pair, loaded, files=True).components if chosen(c)]
    components = [c for c in components if c.kind != "environment"]
    made = _carried_out(grafts.plan(pair, components), good.files(), bad.files())
    return made, Pair(pair.good, read(made, bad.env))


def _differing(pair: Pair, *loaded: str) -> set[str]:
    return {each.id for each in inventory(pair, loaded, files=True).components}


# -- whole images ----------------------------------------------------------------------------------

PARTS = ("alpha", "beta", "gamma", "delta")


def _image(seed: Sequence[int], end: str) -> Invented:
    """Parts of every kind. Each number says whether a part is there, and whether it differs."""
    versions = [None if k == 0 else "same" if k == 1 else end for k in seed]
    if end == "good":
        versions = [v if k != 3 else None for k, v in zip(seed, versions, strict=True)]
    named = list(zip([*PARTS, *PARTS, *PARTS, *PARTS], versions, strict=True))
    wheels = [
        wheel(
            f"w_{name}",
            version,
            {
                f"w_{name}/__init__.py": version,
                f"w_{name}/only_{version}.py": version,
                "shared/__init__.py": "of all",
                f"../../../bin/w-{name}": version,
            },
            compiled=[f"w_{name}/__init__.py"],
        )
        for name, version in named[:4]
        if version
    ]
    debs = [
        Deb(
            f"d-{name}",
            version,
            {
                f"{LIB}/libd{name}.so.1.{version}": version,
                f"{LIB}/libd{name}.so.1": f"-> libd{name}.so.1.{version}",
            },
        )
        for name, version in named[4:8]
        if version
    ]
    loose = {}
    for name, version in named[8:12]:
        if version:
            loose[f"opt/lib/libl{name}.so.1.{version}"] = version
            loose[f"opt/lib/libl{name}.so.1"] = f"-> libl{name}.so.1.{version}"
    for name, version in named[12:]:
        if version:
            loose[f"srv/{name}"] = version
            loose[f"srv/{name}-again"] = f"== srv/{name}"
    cleaned = [_normal(each) for each in wheels]
    return Invented(loose, cleaned, debs)


def _normal(files: Files) -> Files:
    """bin/x instead of dist-packages/../../../bin/x."""
    return {path.replace(f"{SITE}/../../../", "usr/local/"): text for path, text in files.items()}


SEEDS = st.lists(st.integers(0, 4), min_size=16, max_size=16)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(0, 2**16 - 1))
def test_what_is_swapped_is_the_donors_and_all_else_the_bases(
    seed: Sequence[int], chosen: int
) -> None:
    good, bad = _image(seed, "good"), _image(seed, "bad")
    loaded = [f"/{path}" for image in (good, bad) for path in image.files() if "/libl" in path]
    before = _differing(_pair(good, bad), *loaded)
    wanted = {name for k, name in enumerate(sorted(before)) if chosen >> (k % 16) & 1}
    made, after = _grafted(good, bad, lambda each: each.id in wanted, *loaded)
    assert _differing(after, *loaded) == before - wanted
    either = [{*image.files()} for image in (good, bad)]
    assert set(made) <= either[0] | either[1]
    assert set(made) >= either[0] & either[1]


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_all_swapped_leaves_no_difference_and_none_changes_nothing(seed: Sequence[int]) -> None:
    good, bad = _image(seed, "good"), _image(seed, "bad")
    loaded = [f"/{path}" for image in (good, bad) for path in image.files() if "/libl" in path]
    _, after = _grafted(good, bad, lambda each: True, *loaded)
    assert _differing(after, *loaded) == set()
    assert grafts.plan(_pair(good, bad), []).empty


# -- one thing each --------------------------------------------------------------------------------


def test_metadata_and_bytecode_of_the_version_before_go() -> None:
    good = Invented(wheels=[wheel("a", "1", {"a/b.py": "1"}, compiled=["a/b.py"])])
    bad = Invented(wheels=[wheel("a", "2", {"a/b.py": "2", "a/c.py": "2"}, compiled=["a/c.py"])])
    graft = grafts.plan(_pair(good, bad), [Component("distribution", "a", "1", "2")])
    removed = _removed(graft)
    assert f"/{SITE}/a-2.dist-info/METADATA" in removed
    assert f"/{SITE}/a-2.dist-info" in removed  # an empty one is a distribution to Python
    assert f"/{SITE}/a/__pycache__/c.cpython-311.pyc" in removed
    assert f"{SITE}/a/__pycache__/b.cpython-311.pyc" in graft.copy
    assert f"/{SITE}/a" not in removed


def test_bytecode_goes_with_a_source_that_is_in_no_package() -> None:
    """Layers of one date hold sources of one date: Python would take what was compiled before."""
    cached = "opt/app/__pycache__/{}.cpython-311.pyc"
    good = Invented({"opt/app/a.py": "1", cached.format("a"): "1", "opt/app/b.py": "1"})
    bad = Invented({f"opt/app/{x}.py": "2" for x in "ab"} | {cached.format(x): "2" for x in "ab"})
    made, _ = _grafted(good, bad, lambda each: True)
    assert made == good.files()


def test_a_file_that_another_distribution_brings_too_stays() -> None:
    shared = {"nvidia/__init__.py": ""}
    bad = Invented(
        wheels=[wheel("x", "2", {**shared, "nvidia/x.py": ""}), wheel("y", "2", {**shared})]
    )
    graft = grafts.plan(_pair(Invented(), bad), [Component("distribution", "x", None, "2")])
    assert f"{SITE}/nvidia/x.py" in graft.remove
    assert f"{SITE}/nvidia/__init__.py" not in graft.remove
    both = [Component("distribution", name, None, "2") for name in "xy"]
    graft = grafts.plan(_pair(Invented(), bad), both)
    assert f"{SITE}/nvidia/__init__.py" in graft.remove


@pytest.mark.parametrize("last", ["x", "y"])
def test_a_file_of_two_distributions_goes_with_the_one_that_wrote_it(last: str) -> None:
    def image(version: str) -> Invented:
        made = {
            name: wheel(name, version, {"both.py": f"{name} {version}", f"{name}.py": version})
            for name in "xy"
        }
        for name, files in made.items():
            digest = hashlib.sha256(f"{name} {version}".encode()).digest()
            wanted = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            record = f"{SITE}/{name}-{version}.dist-info/RECORD"
            files[record] = files[record].replace("both.py,sha256=x", f"both.py,sha256={wanted}")
        return Invented(
            wheels=sorted(made.values(), key=lambda files: f"{SITE}/{last}.py" in files)
        )

    good, bad = image("1"), image("2")
    for swapped in "xy":
        made, _ = _grafted(good, bad, lambda each, name=swapped: each.name == name)  # type: ignore[misc]
        assert made[f"{SITE}/both.py"] == f"{last} {1 if swapped == last else 2}"


def test_dpkg_says_lib_where_the_file_is_in_usr() -> None:
    images = [Invented(debs=[Deb("libz", v, {f"{LIB}/libz.so.{v}": v})]) for v in "12"]
    assert "/lib/x86_64-linux-gnu/libz.so.1\n" in images[0].files()["var/lib/dpkg/info/libz.list"]
    made, after = _grafted(*images, lambda each: True)
    assert made[f"{LIB}/libz.so.1"] == "1"
    assert f"{LIB}/libz.so.2" not in made
    assert not any(path.startswith("lib/") for path in made)
    assert after.bad.packages["libz"].version == "1"


def test_dpkgs_status_changes_for_the_swapped_packages_alone() -> None:
    good = Invented(debs=[Deb("a", "1", {}), Deb("b", "1", {}), Deb("old", "1", {})])
    bad = Invented(debs=[Deb("a", "2", {}), Deb("b", "2", {}), Deb("new", "2", {})])
    _, after = _grafted(good, bad, lambda each: each.name in ("a", "old", "new"))
    assert {name: part.version for name, part in after.bad.packages.items()} == {
        "a": "1",
        "b": "2",
        "old": "1",
    }


def test_a_library_lands_where_the_bases_loader_looks() -> None:
    def image(release: str) -> Invented:
        folder = f"usr/local/cuda-{release}/lib64"
        whole = f"libcublas.so.{release}.0"
        content = {f"{folder}/{whole}": release, f"{folder}/libcublas.so.12": f"-> {whole}"}
        return Invented(content | {"usr/local/cuda": f"-> cuda-{release}"})

    loaded = "/usr/local/cuda-12.2/lib64/libcublas.so.12.2.0"
    made, _ = _grafted(image("12.2"), image("12.4"), lambda each: each.kind == "library", loaded)
    folder = "usr/local/cuda-12.4/lib64"
    assert {path: text for path, text in made.items() if "cublas" in path} == {
        f"{folder}/libcublas.so.12.2.0": "12.2",
        f"{folder}/libcublas.so.12": "-> libcublas.so.12.2.0",
    }


def test_copies_of_one_library_do_not_change_places() -> None:
    def image(end: str, other: str) -> Invented:
        return Invented({"opt/m/libx.so.1": end, f"opt/{other}/libx.so.1": f"other {end}"})

    good, bad = image("good", "z"), image("bad", "a")
    made, _ = _grafted(good, bad, lambda each: True, "/opt/m/libx.so.1")
    assert {path: text for path, text in made.items() if "libx" in path} == {
        "opt/m/libx.so.1": "good",
        "opt/a/libx.so.1": "other good",
    }


def test_alternatives_that_a_package_was_chosen_for_fall_back_to_the_donors() -> None:
    def image(chosen: str, *extra: Deb) -> Invented:
        reference = Deb("libblas3", "3", {f"{LIB}/blas/libblas.so.3": "reference"})
        admin = f"auto\n/{LIB}/libblas.so.3\n\n/{LIB}/{chosen}/libblas.so.3\n10\n\n"
        links = {
            f"{LIB}/libblas.so.3": "-> /etc/alternatives/libblas.so.3",
            "etc/alternatives/libblas.so.3": f"-> /{LIB}/{chosen}/libblas.so.3",
            "var/lib/dpkg/alternatives/libblas.so.3": admin,
        }
        return Invented(links, debs=[reference, *extra])

    openblas = Deb("libopenblas0", "0.3", {f"{LIB}/openblas/libblas.so.3": "fast"})
    plain, fast = image("blas"), image("openblas", openblas)
    for good, bad, chosen in ((plain, fast, "blas"), (fast, plain, "openblas")):
        made, after = _grafted(good, bad, lambda each: each.name == "libopenblas0")
        assert made["etc/alternatives/libblas.so.3"] == f"-> /{LIB}/{chosen}/libblas.so.3"
        assert made[f"{LIB}/libblas.so.3"] == "-> /etc/alternatives/libblas.so.3"
        assert _differing(after) == set()


def test_a_link_that_becomes_a_folder_goes_first() -> None:
    good = Invented({"opt/app/lib/a.so": "1"})
    bad = Invented({"opt/app": "-> app-2", "opt/app-2/lib/a.so": "2"})
    pair = _pair(good, bad)
    components = inventory(pair, (), files=True).components
    graft = grafts.plan(pair, components)
    assert graft.remove == ("opt/app", "opt/app-2/lib/a.so")
    assert graft.copy == {"opt/app/lib/a.so": "opt/app/lib/a.so"}
    assert list(graft.folders) == ["opt/app", "opt/app/lib"]
    assert graft.removes_first


def test_names_that_a_shell_would_read_stay_names() -> None:
    odd = ["opt/a b", "opt/$(touch x)", "opt/it's", "opt/new\nline", "opt/-rf"]
    pair = _pair(Invented(), Invented(dict.fromkeys(odd, "x")))
    components = inventory(pair, (), files=True).components
    script = grafts.removal(grafts.plan(pair, components))
    assert sorted(shlex.split(script)[3 : 3 + len(odd)]) == sorted(f"/{path}" for path in odd)


def test_a_donors_tar_that_lacks_a_path_is_noticed() -> None:
    pair = _pair(Invented({"opt/a": "1", "opt/b": "1"}), Invented())
    graft = grafts.plan(pair, inventory(pair, (), files=True).components)
    copier = Copier(graft)
    list(copier.pieces(tar({"a": "1"}), "opt"))
    assert copier.missing == {"opt/b"}


# -- wheels ----------------------------------------------------------------------------------------


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    place = tmp_path / "a-2-py3-none-any.whl"
    with zipfile.ZipFile(place, "w") as out:
        out.writestr("a/__init__.py", "2")
        out.writestr("a-2.data/purelib/a_more.py", "2")
        out.writestr("a-2.data/scripts/run-a", "#!python\n")
        out.writestr("a-2.data/scripts/../../../etc/passwd", "no")
        out.writestr("a-2.dist-info/METADATA", "Name: a\nVersion: 2\n")
        out.writestr("a-2.dist-info/entry_points.txt", "[console_scripts]\na = a.cli:Main.go\n")
        out.writestr("a-2.dist-info/RECORD", "a/__init__.py,,\na_more.py,,\n")
    return place


def test_a_wheel_takes_the_place_of_what_was_there(archive: Path) -> None:
    old = wheel("a", "1", {"a/__init__.py": "1", "a/gone.py": "1"}, compiled=["a/gone.py"])
    image = Invented(wheels=[old, wheel("b", "1", {"b.py": ""})])
    plan = wheel_graft.plan(image.owned(), "a", archive)
    gone = {path[1:] for path in _removed(plan.graft)}
    made = {path: text for path, text in image.files().items() if path not in gone}
    made.update(_unpacked(b"".join(grafts.tar(plan.pieces()))))
    part = read(made).distributions["a"]
    assert part.version == "2"
    assert f"{SITE}/a/gone.py" not in made
    assert f"{SITE}/a/__pycache__/gone.cpython-311.pyc" not in made
    assert made[f"{SITE}/a_more.py"] == "2"
    assert "from a.cli import Main" in made["usr/local/bin/a"]
    assert "usr/local/bin/run-a" in made
    assert not any("passwd" in path for path in made)


def test_an_image_without_any_distribution_has_no_place_for_a_wheel(archive: Path) -> None:
    with pytest.raises(wheel_graft.WheelError, match="no site-packages"):
        wheel_graft.plan(Invented().owned(), "a", archive)


def test_wheels_that_suit_the_images_c_library_are_wanted() -> None:
    image = Invented(debs=[Deb("libc6", "2.36-9+deb12u8", {})]).owned()
    tags = wheel_graft.platforms(image, "x86_64")
    assert tags[0] == "manylinux_2_36_x86_64"
    assert "manylinux2014_x86_64" in tags
    assert "manylinux_2_37_x86_64" not in tags
