"""Small images as plain values: paths with content, lists that installers leave, and their tar."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stackbisect.spaces import image_files, ownership
from stackbisect.spaces.ownership import Owned

SITE = "usr/local/lib/python3.11/dist-packages"
BASE = {"bin": "-> usr/bin", "lib": "-> usr/lib", "usr/bin/sh": "a shell"}
"""A merged /usr, as Debian has it since 12."""

Content = Mapping[str, str]
"""Path → what is in the file. `-> TARGET` is a symbolic link, `== PATH` a hard link."""


@dataclass(frozen=True)
class Deb:
    """A Debian package: where dpkg says that its files are, which /lib may hide."""

    name: str
    version: str
    files: Content
    depends: str = ""
    source: str = ""


@dataclass(frozen=True)
class Invented:
    """An image: loose files, distributions and packages that `files` puts together."""

    content: Content = field(default_factory=dict)
    wheels: Sequence[Content] = ()
    debs: Sequence[Deb] = ()
    env: Sequence[str] = ()

    def files(self) -> dict[str, str]:
        """Every file by its real path."""
        found = {**BASE}
        for wheel in self.wheels:
            found.update(wheel)
        status = []
        for deb in self.debs:
            found.update(deb.files)
            listed = ["/.", *(f"/{path.removeprefix('usr/')}" for path in deb.files)]
            found[f"var/lib/dpkg/info/{deb.name}.list"] = "".join(f"{p}\n" for p in listed)
            status.append(_stanza(deb))
        if status:
            found["var/lib/dpkg/status"] = "\n".join(status)
        found.update(self.content)
        return found

    def owned(self) -> Owned:
        """As it is read from a daemon's export."""
        return read(self.files(), self.env)


def _stanza(deb: Deb) -> str:
    lines = {
        "Package": deb.name,
        "Status": "install ok installed",
        "Architecture": "amd64",
        "Source": deb.source,
        "Version": deb.version,
        "Depends": deb.depends,
        "Description": "invented",
    }
    return "".join(f"{name}: {value}\n" for name, value in lines.items() if value)


def wheel(
    name: str,
    version: str,
    files: Content,
    *,
    requires: Sequence[str] = (),
    compiled: Sequence[str] = (),
    site: str = SITE,
) -> dict[str, str]:
    """An installed wheel. `compiled`: modules with cached bytecode that RECORD does not list."""
    info = f"{name}-{version}.dist-info"
    headers = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    inner = {**files, f"{info}/METADATA": "\n".join([*headers, "", "text"])}
    rows = [f"{path},sha256=x,1\n" for path in inner] + [f"{info}/RECORD,,\n"]
    found = {f"{site}/{path}": text for path, text in inner.items()}
    found[f"{site}/{info}/RECORD"] = "".join(rows)
    found[f"{site}/{info}/INSTALLER"] = "pip\n"
    for module in compiled:
        folder, _, stem = module.removesuffix(".py").rpartition("/")
        found[f"{site}/{folder}/__pycache__/{stem}.cpython-311.pyc"] = f"of {files[module]}"
    return found


def read(files: Content, env: Sequence[str] = ()) -> Owned:
    """Any files, read as an image."""
    return ownership.read(image_files.read(tar(files)), env)


def tar(files: Content, strip: str = "") -> Iterator[bytes]:
    """The files as a tar stream, every folder before what is in it; `strip` is cut off names."""
    buffer = io.BytesIO()
    seen: set[str] = set()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        # A hard link comes after the file that it is another name of.
        for path, text in sorted(files.items(), key=lambda each: (each[1].startswith("== "), each)):
            for folder in _folders(path):
                if folder not in seen and folder.startswith(strip):
                    seen.add(folder)
                    info = tarfile.TarInfo(folder[len(strip) :])
                    info.type, info.mode = tarfile.DIRTYPE, 0o755
                    out.addfile(info)
            info = tarfile.TarInfo(path[len(strip) :])
            if text.startswith("-> "):
                info.type, info.linkname = tarfile.SYMTYPE, text[3:]
                out.addfile(info)
            elif text.startswith("== "):
                info.type, info.linkname = tarfile.LNKTYPE, text[3:][len(strip) :]
                out.addfile(info)
            else:
                info.size = len(text.encode())
                out.addfile(info, io.BytesIO(text.encode()))
    data = buffer.getvalue()
    return iter([data[start : start + 777] for start in range(0, len(data), 777)])


def _folders(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]
