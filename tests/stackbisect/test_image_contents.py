"""What is in an image is found wherever installers put it, and only real differences are told."""

from __future__ import annotations

import io
import tarfile

from stackbisect.spaces import image_contents as contents

SITE = "usr/lib/python3/dist-packages"


def _export(files: dict[str, str], links: dict[str, str] | None = None) -> list[bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            out.addfile(info, io.BytesIO(text.encode()))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.LNKTYPE, target
            out.addfile(info)
    data = buffer.getvalue()
    return [data[start : start + 999] for start in range(0, len(data), 999)]


def _metadata(name: str, version: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nText\nVersion: 9\n"


def test_distributions_of_every_site_packages_and_form() -> None:
    found = contents.read(
        _export(
            {
                f"{SITE}/numpy-2.0.0.dist-info/METADATA": _metadata("numpy", "2.0.0"),
                "opt/venv/lib/python3.12/site-packages/Foo_Bar-1.dist-info/METADATA": _metadata(
                    "Foo_Bar", "1"
                ),
                f"{SITE}/old-3.egg-info/PKG-INFO": _metadata("old", "3"),
                f"{SITE}/single-4.egg-info": _metadata("single", "4"),
                "opt/lib/own-5.dist-info/METADATA": _metadata("own", "5"),
                f"{SITE}/setuptools/_vendor/wheel-1.dist-info/METADATA": _metadata("wheel", "1"),
                "home/x/cache-1.dist-info/METADATA": _metadata("cache", "1"),
            }
        ),
        ["PYTHONPATH=/opt/lib:/none"],
    )
    assert found.distributions == {
        "foo-bar": "1",
        "numpy": "2.0.0",
        "old": "3",
        "own": "5",
        "single": "4",
    }


def test_installers_that_link_from_a_cache_are_seen() -> None:
    cached = "root/.cache/uv/archive/x/numpy-2.0.0.dist-info/METADATA"
    conda = "opt/conda/pkgs/six-1/lib/python3.11/site-packages/six-1.dist-info/METADATA"
    found = contents.read(
        _export(
            {cached: _metadata("numpy", "2.0.0"), conda: _metadata("six", "1")},
            {
                f"{SITE}/numpy-2.0.0.dist-info/METADATA": cached,
                "opt/conda/lib/python3.11/site-packages/six-1.dist-info/METADATA": conda,
            },
        ),
        [],
    )
    assert found.distributions == {"numpy": "2.0.0", "six": "1"}


def test_two_versions_of_one_distribution_are_both_named() -> None:
    files = {
        f"{SITE}/numpy-1.dist-info/METADATA": _metadata("numpy", "1"),
        "usr/local/lib/python3.11/dist-packages/numpy-2.dist-info/METADATA": _metadata(
            "numpy", "2"
        ),
    }
    version = contents.read(_export(files), []).distributions["numpy"]
    assert version == f"1 in /{SITE}, 2 in /usr/local/lib/python3.11/dist-packages"


def test_debian_packages_that_are_installed() -> None:
    status = (
        "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9\n"
        "Description: a\n b\n .\n Version: not this\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n"
        "Package: libc6\nStatus: install ok installed\nArchitecture: i386\nVersion: 2.35\n"
    )
    distroless = "Package: base-files\nVersion: 12\n"
    found = contents.read(
        _export({"var/lib/dpkg/status": status, "var/lib/dpkg/status.d/base-files": distroless}), []
    )
    assert found.packages == {"libc6": "2.36-9", "libc6:i386": "2.35", "base-files": "12"}


def test_difference_names_what_changed_came_and_went() -> None:
    good = contents.Contents(
        distributions={"numpy": "1", "same": "1", "gone": "1"},
        packages={"libc6": "1"},
        environment={"A": "1", "B": "x"},
    )
    bad = contents.Contents(
        distributions={"numpy": "2", "same": "1", "new": "3"},
        packages={"libc6": "1"},
        environment={"A": "2", "B": "x"},
    )
    assert contents.difference(good, bad) == {
        "distributions": {"gone": ["1", None], "new": [None, "3"], "numpy": ["1", "2"]},
        "packages": {},
        "environment": {"A": ["1", "2"]},
    }


def test_one_version_built_twice_is_a_difference() -> None:
    one = contents.record_digest("np/a.so,sha256=AAA,10\nnp-1.dist-info/INSTALLER,sha256=p,4\n")
    same = contents.record_digest("np/a.so,sha256=AAA,10\nnp-1.dist-info/INSTALLER,sha256=u,2\n")
    other = contents.record_digest("np/a.so,sha256=BBB,10\n")
    assert one == same != other
    good = contents.Contents(distributions={"np": "1"}, files={"np": one})
    bad = contents.Contents(distributions={"np": "1"}, files={"np": other})
    assert contents.difference(good, good)["distributions"] == {}
    assert contents.difference(good, bad)["distributions"] == {
        "np": [f"1 (files {one})", f"1 (files {other})"]
    }


def test_secrets_in_an_images_environment_are_hidden() -> None:
    found = contents.read(_export({}), ["HF_TOKEN=abc", "PATH=/bin"])
    assert found.environment == {"HF_TOKEN": "<hidden>", "PATH": "/bin"}


def test_cached_contents_of_another_form_or_torn_are_read_anew() -> None:
    found = contents.Contents(distributions={"numpy": "1"})
    text = contents.dumps(found)
    assert contents.loads(text) == found
    assert contents.loads(text[:-20]) is None
    assert contents.loads(text.replace('"format": 1', '"format": 0')) is None
