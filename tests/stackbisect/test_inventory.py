"""What differs between two images is found, once each, with what belongs together side by side."""

from __future__ import annotations

import pytest

from stackbisect.runtimes.version_lists import available, between, madison
from stackbisect.spaces import debian_versions, image_files, versions
from stackbisect.spaces.components import Component
from stackbisect.spaces.inventory import MOST_FILES, Pair, family, inventory, restricted
from tests.stackbisect.invented_images import SITE, Deb, Invented, tar, wheel

LIB = "usr/lib/x86_64-linux-gnu"


def _pair(good: Invented, bad: Invented) -> Pair:
    return Pair(good.owned(), bad.owned())


def _found(good: Invented, bad: Invented, *loaded: str, files: bool = False) -> list[Component]:
    return list(inventory(_pair(good, bad), loaded, files=files).components)


def test_every_kind_is_found_once() -> None:
    good = Invented(
        {"opt/lib/libfast.so.1.2": "one", "opt/lib/libfast.so.1": "-> libfast.so.1.2"},
        [wheel("alpha", "1", {"alpha/__init__.py": "1"}), wheel("only_good", "1", {"og.py": ""})],
        [Deb("tool", "1.0-1", {"usr/lib/tool": "1"})],
        ["A=1", "GONE=x"],
    )
    bad = Invented(
        {"opt/lib/libfast.so.1.3": "two", "opt/lib/libfast.so.1": "-> libfast.so.1.3"},
        [wheel("alpha", "2", {"alpha/__init__.py": "2"})],
        [Deb("tool", "1.0-2", {"usr/lib/tool": "2"})],
        ["A=2"],
    )
    found = _found(good, bad, "/opt/lib/libfast.so.1.2", "/opt/lib/libfast.so.1.3")
    assert [(each.id, each.good, each.bad) for each in found if each.kind != "library"] == [
        ("distribution:alpha", "1", "2"),
        ("distribution:only-good", "1", None),
        ("package:tool", "1.0-1", "1.0-2"),
        ("environment:A", "1", "2"),
        ("environment:GONE", "x", None),
    ]
    (library,) = [each for each in found if each.kind == "library"]
    assert library.name == "libfast.so"
    assert [str(v).partition(" ")[0] for v in (library.good, library.bad)] == ["1.2", "1.3"]


def test_one_version_made_of_other_files_differs() -> None:
    images = [Invented(wheels=[wheel("a", "1", {"a.py": text})]) for text in ("x", "y")]
    (found,) = _found(*images)
    assert found.good != found.bad
    assert all(str(value).startswith("1 (files ") for value in (found.good, found.bad))


def test_who_installed_a_wheel_and_compiled_it_makes_no_difference() -> None:
    plain = wheel("a", "1", {"a/b.py": "x"})
    other = wheel("a", "1", {"a/b.py": "x"}, compiled=["a/b.py"])
    other[f"{SITE}/a-1.dist-info/INSTALLER"] = "uv\n"
    assert _found(Invented(wheels=[plain]), Invented(wheels=[other]), files=True) == []


def test_a_library_of_a_differing_package_is_no_component_of_its_own() -> None:
    images = [
        Invented(debs=[Deb("libx1", v, {f"{LIB}/libx.so.1.{v}": v, f"{LIB}/libx.so.1": f"-> {v}"})])
        for v in ("1", "2")
    ]
    loaded = [f"/{LIB}/libx.so.1.{v}" for v in ("1", "2")]
    assert [each.id for each in _found(*images, *loaded)] == ["package:libx1"]


def test_a_library_that_was_overwritten_inside_an_unchanged_package_is_seen() -> None:
    deb = Deb("libx1", "1", {f"{LIB}/libx.so.1": "packaged"})
    images = [Invented(debs=[deb]), Invented({f"{LIB}/libx.so.1": "overwritten"}, debs=[deb])]
    (found,) = _found(*images, f"/{LIB}/libx.so.1")
    assert (found.id, str(found.good)[:8]) == ("package:libx1", "1 (files")


def test_a_library_that_nothing_loads_is_none_of_the_components() -> None:
    images = [Invented({"opt/libidle.so.1": text}) for text in ("x", "y")]
    assert _found(*images, "/opt/libother.so") == []
    (found,) = _found(*images, files=True)
    assert found.id == "file:/opt/libidle.so.1"


def test_secrets_are_hidden_and_still_differ() -> None:
    images = [Invented(env=[f"API_TOKEN={text}"]) for text in ("hunter2", "hunter3")]
    (found,) = _found(*images)
    assert found.good != found.bad
    assert "hunter" not in str(found)


def test_exact_pins_make_groups_and_stand_together() -> None:
    def image(version: str) -> Invented:
        pins = [f"triton=={version}", f"nvidia-cublas-cu12=={version}; sys_platform == 'linux'"]
        wheels = [
            wheel("torch", version, {"torch.py": version}, requires=[*pins, "zlib_ng==1; extra"]),
            wheel("triton", version, {"triton.py": version}),
            wheel("nvidia-cublas-cu12", version, {"c.py": version}),
            wheel("six", version, {"six.py": version}),
        ]
        debs = [
            Deb("libc6", version, {"usr/lib/libc": version}, source="glibc"),
            Deb("libc-bin", version, {"usr/lib/ldd": version}, f"libc6 (= {version})", "glibc"),
            Deb("bash", version, {"usr/lib/bash": version}),
            Deb("locales", version, {"usr/lib/loc": version}, source="glibc"),
        ]
        return Invented(wheels=wheels, debs=debs)

    found = inventory(_pair(image("1"), image("2")), ())
    torch = ("distribution:nvidia-cublas-cu12", "distribution:torch", "distribution:triton")
    assert found.groups == (torch, ("package:libc-bin", "package:libc6"))
    names = [each.id for each in found.components]
    start = names.index(torch[0])
    assert names[start : start + 3] == list(torch)
    start = names.index("package:libc-bin")
    assert names[start : start + 2] == ["package:libc-bin", "package:libc6"]


def test_libraries_of_one_release_make_a_group() -> None:
    def image(version: str) -> Invented:
        names = ["libcudnn.so", "libcudnn_ops.so", "libcublas.so"]
        release = {"libcublas.so": f"12.{version}.0"}
        return Invented({f"opt/{n}.{release.get(n, f'9.{version}.0')}": version for n in names})

    loaded = ["/opt/libcudnn.so.9.1.0", "/opt/libcudnn_ops.so.9.1.0", "/opt/libcublas.so.12.1.0"]
    found = inventory(_pair(image("1"), image("2")), loaded)
    assert found.groups == (("library:libcudnn.so", "library:libcudnn_ops.so"),)


def test_pip_and_dpkg_installations_of_one_thing_go_together() -> None:
    apt = Deb(
        "python3-numpy",
        "1.24",
        {
            "usr/lib/python3/dist-packages/numpy/a.py": "1",
            "usr/lib/python3/dist-packages/numpy-1.24.egg-info/PKG-INFO": "Name: numpy\n"
            "Version: 1.24\n",
        },
    )
    pip = wheel("numpy", "2", {"numpy/a.py": "2"})
    found = inventory(_pair(Invented(debs=[apt]), Invented(wheels=[pip])), ())
    names = ["distribution:numpy", "package:python3-numpy"]
    assert [each.id for each in found.components] == names
    assert found.groups == (tuple(names),)


def test_other_files_are_named_on_request_and_counted_otherwise() -> None:
    images = [
        Invented({f"opt/app/f{k}": f"{text}{k}" for k in range(3)} | {"tmp/x": text})
        for text in ("x", "y")
    ]
    found = inventory(_pair(*images), ())
    assert found.components == ()
    assert found.notes == (
        "3 other files differ, most in /opt/app; with --files they are components too",
    )
    names = [each.id for each in _found(*images, files=True)]
    assert names == [f"file:/opt/app/f{k}" for k in range(3)]


def test_many_files_count_by_their_folders() -> None:
    images = [
        Invented({f"opt/app{folder}/f{k}": f"{text}{k}" for folder in range(30) for k in range(9)})
        for text in ("x", "y")
    ]
    found = _found(*images, files=True)
    assert len(found) <= MOST_FILES
    pair = _pair(*images)
    paths = [path for each in found for path in pair.paths(each, pair.good)]
    assert len(paths) == len(set(paths)) == 270


def test_a_folder_brings_no_library_that_is_a_component_of_its_own() -> None:
    library = "opt/lib/deep/libfast.so.1"
    images = [
        Invented({f"opt/lib/deep/f{k}": text for k in range(2 * MOST_FILES)} | {library: text})
        for text in ("x", "y")
    ]
    found = _found(*images, f"/{library}", files=True)
    pair = _pair(*images)
    brought = [each.id for each in found if library in pair.paths(each, pair.good)]
    assert brought == ["library:libfast.so"]


def test_only_named_components_are_left() -> None:
    images = [
        Invented(wheels=[wheel("a", v, {"a.py": v}), wheel("b", v, {"b.py": v})]) for v in "12"
    ]
    found = restricted(inventory(_pair(*images), ()), ["distribution:b", "package:no"])
    assert [each.id for each in found.components] == ["distribution:b"]
    assert found.notes == (
        "package:no does not differ, or is no component",
        "1 other components differ and stay as they are (--component)",
    )


def test_what_is_read_of_an_image_survives_its_cache() -> None:
    image = Invented(
        {"opt/a": "x", "opt/b": "== opt/a", "opt/c": "-> a"}, [wheel("w", "1", {"w.py": ""})]
    )
    files = image_files.read(tar(image.files()))
    assert files.entries["opt/b"].mark == files.entries["opt/a"].mark
    assert image_files.loads(image_files.dumps(files)) == files
    assert image_files.loads("{}") is None


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/usr/lib/libcublas.so.12.4.5", "libcublas.so"),
        ("libtorch_cpu.so", "libtorch_cpu.so"),
        ("numpy/_core.cpython-311-x86_64-linux-gnu.so", "_core.cpython-311-x86_64-linux-gnu.so"),
        ("/usr/lib/libfoo.so.txt", None),
        ("/usr/lib/ld.so.conf", None),
    ],
)
def test_a_librarys_family_is_its_name_without_version(path: str, wanted: str | None) -> None:
    assert family(path) == wanted


def test_versions_between_two_ends_go_from_good_to_bad() -> None:
    listed = available("x (3)\nAvailable versions: 3, 2.1, 2.0, 1.5, 1.0rc1, 1\n")
    assert between("1", "2.1", listed, versions.order) == ["1", "1.5", "2.0", "2.1"]
    assert between("2.1", "1.5", listed, versions.order) == ["2.1", "2.0", "1.5"]
    assert between("1+local", "2.0", [], versions.order) == ["1+local", "2.0"]
    apt = madison(" tool | 1.0-2 | http://mirror bookworm/main\n tool | 1.0~rc1-1 | x\n")
    order = debian_versions.order
    assert between("1.0~rc1-1", "1.0-9", apt, order) == ["1.0~rc1-1", "1.0-2", "1.0-9"]


def test_debian_versions_are_ordered_as_dpkg_orders_them() -> None:
    ordered = ["1.0~~", "1.0~rc1-1", "1.0", "1.0-1", "1.0-1+b1", "1.0a", "1.0+x", "1.1", "1:0.1"]
    shuffled = sorted(ordered)
    assert shuffled != ordered
    assert sorted(shuffled, key=debian_versions.order) == ordered
