"""Makes container images for tests and puts them into a registry, without a Docker daemon.

An image is a small Debian with Python (made by debootstrap once, then kept) and a layer or two on
top, written as the registry's own files: manifests, so that digests depend on content alone.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import urllib.parse
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from tests.stackbisect import services

SITE = "usr/local/lib/python3.11/dist-packages"
_SUITE = "bookworm"
_PACKAGES = ("python3",)
_LEFT_OUT = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "var/log")
_LAYERS = "shared/layers"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


@dataclass(frozen=True)
class Layer:
    """One gzipped tar: its file, the digest of the file, the digest of the tar inside."""

    file: Path
    digest: str
    diff_id: str


def base() -> Layer:
    """Return the layer of a minimal Debian with Python 3.11.

    Made once and kept under a name that says what it was made from. Raises ServiceMissing.
    """
    recipe = json.dumps([_SUITE, _PACKAGES, _LEFT_OUT, 1])
    name = f"base-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    with services.locked("base") as place:
        file = place / f"{name}.tar.gz"
        if not file.exists():
            _bootstrap(place / name, file)
    return described(file)


def _bootstrap(root: Path, file: Path) -> None:
    if shutil.which("debootstrap", path="/usr/sbin:/usr/bin:/sbin:/bin") is None:
        raise services.ServiceMissing(
            "needs the program debootstrap (scripts/services.sh installs it)"
        )
    shutil.rmtree(root, ignore_errors=True)
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", _SUITE]
    done = subprocess.run([*command, str(root)], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        end = (done.stdout + done.stderr).strip().splitlines()[-3:]
        raise services.ServiceMissing(f"debootstrap failed: {' / '.join(end)}")
    for folder in _LEFT_OUT:
        shutil.rmtree(root / folder, ignore_errors=True)
        (root / folder).mkdir()
    draft = file.with_suffix(".draft")
    with draft.open("wb") as out:
        packed = subprocess.Popen(
            ["tar", "--sort=name", "--mtime=@0", "--numeric-owner", "-C", str(root), "-c", "."],
            stdout=subprocess.PIPE,
        )
        subprocess.run(["gzip", "-1n"], stdin=packed.stdout, stdout=out, check=True)
        if packed.wait() != 0:
            raise services.ServiceMissing(f"tar failed over {root}")
    draft.rename(file)
    shutil.rmtree(root)


def numpy(version: str) -> Layer:
    """Return the layer of a real numpy wheel for the image's Python, unpacked."""
    with services.locked(f"numpy-{version}") as place:
        file = place / f"numpy-{version}.tar.gz"
        if not file.exists():
            with zipfile.ZipFile(_download("numpy", version, place / "wheels")) as wheel:
                names = [n for n in wheel.namelist() if not n.endswith("/") and "/tests/" not in n]
                _write(file, {f"{SITE}/{name}": wheel.read(name) for name in names})
    return described(file)


def wheel(path: Path) -> Layer:
    """Return the layer of a wheel, unpacked."""
    with zipfile.ZipFile(path) as archive:
        return files({f"{SITE}/{name}": archive.read(name) for name in archive.namelist()})


def download(requirements: Sequence[str], target: Path) -> None:
    """Get wheels for the image's Python from the index. Raises ServiceMissing."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
        *("--only-binary=:all:", "--python-version=3.11", "--implementation=cp"),
        *("--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_27_x86_64"),
        *("--platform=manylinux2014_x86_64", f"--dest={target}", *requirements),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        end = done.stderr.strip().splitlines()[-1:]
        wanted = ", ".join(requirements)
        raise services.ServiceMissing(f"{wanted} cannot be downloaded: {' '.join(end)}")


def _download(name: str, version: str, target: Path) -> Path:
    download([f"{name}=={version}"], target)
    return next(target.glob(f"{name}-{version}-*.whl"))


def files(content: Mapping[str, str | bytes], executable: Sequence[str] = ()) -> Layer:
    """Return a layer of a few files, by their path without the leading slash."""
    name = hashlib.sha256(repr((sorted(content.items()), sorted(executable))).encode()).hexdigest()
    with services.locked("layers") as place:
        file = place / "layers" / f"{name[:24]}.tar.gz"
        file.parent.mkdir(exist_ok=True)
        if not file.exists():
            data = {n: c.encode() if isinstance(c, str) else c for n, c in content.items()}
            _write(file, data, executable)
    return described(file)


def _write(file: Path, content: Mapping[str, bytes], executable: Sequence[str] = ()) -> None:
    draft = file.with_suffix(".draft")
    with (
        draft.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1, mtime=0, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        seen: set[str] = set()
        for name, data in content.items():
            for parent in reversed(Path(name).parents):
                if str(parent) not in seen | {"."}:
                    seen.add(str(parent))
                    folder = tarfile.TarInfo(str(parent))
                    folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(folder)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mode = 0o755 if name in executable or name.endswith(".so") else 0o644
            archive.addfile(info, io.BytesIO(data))
    draft.rename(file)


def described(file: Path) -> Layer:
    """Return the layer that a file is; its digests are kept beside it."""
    note = file.with_suffix(".json")
    if not note.exists():
        outer, inner = hashlib.sha256(file.read_bytes()), hashlib.sha256()
        with gzip.open(file) as tar:
            while piece := tar.read(1 << 20):
                inner.update(piece)
        draft = note.with_suffix(".note-draft")
        draft.write_text(json.dumps([f"sha256:{h.hexdigest()}" for h in (outer, inner)]))
        draft.rename(note)
    digest, diff_id = json.loads(note.read_text())
    return Layer(file, digest, diff_id)


@dataclass(frozen=True)
class Image:
    """What an image is made of: layers above the base, and the config that starts it."""

    layers: Sequence[Layer] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: Sequence[str] = ()
    user: str = ""
    workdir: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    created: str = "2026-01-01T00:00:00Z"
    with_base: bool = True


@dataclass(frozen=True)
class Repository:
    """A repository in a registry, to push to."""

    service: services.RegistryService
    name: str

    @property
    def reference(self) -> str:
        """What `--image` takes."""
        return f"{self.service.host}/{self.name}"

    def push(self, tag: str, image: Image) -> str:
        """Put an image under a tag; return its manifest's digest."""
        layers = [*([base()] if image.with_base else []), *image.layers]
        for layer in layers:
            self._layer(layer)
        config = json.dumps(_config(image, layers), sort_keys=True).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "size": len(config), "digest": self._blob(config)},
            "layers": [
                {"mediaType": LAYER, "size": each.file.stat().st_size, "digest": each.digest}
                for each in layers
            ],
        }
        return self.put_manifest(tag, manifest)

    def put_manifest(self, tag: str, manifest: Mapping[str, Any]) -> str:
        """Put a manifest or an index under a tag; return its digest."""
        body = json.dumps(manifest, sort_keys=True).encode()
        answer = requests.put(
            f"{self._url}/manifests/{tag}",
            data=body,
            headers={**self.service.headers, "Content-Type": manifest["mediaType"]},
            timeout=60,
        )
        answer.raise_for_status()
        return f"sha256:{hashlib.sha256(body).hexdigest()}"

    @property
    def _url(self) -> str:
        return f"http://{self.service.host}/v2/{self.name}"

    def _layer(self, layer: Layer) -> None:
        """Sent to the registry once, and from there on shown in every repository."""
        store = Repository(self.service, _LAYERS)
        query = urllib.parse.urlencode({"mount": layer.digest, "from": _LAYERS})
        for _ in range(2):
            shown = requests.post(
                f"{self._url}/blobs/uploads/?{query}", headers=self.service.headers, timeout=60
            )
            if shown.status_code == requests.codes.created:
                return
            store._blob(layer.file.read_bytes(), layer.digest)
        self._blob(layer.file.read_bytes(), layer.digest)

    def _blob(self, data: bytes, digest: str = "") -> str:
        digest = digest or f"sha256:{hashlib.sha256(data).hexdigest()}"
        headers = self.service.headers
        there = requests.head(f"{self._url}/blobs/{digest}", headers=headers, timeout=60)
        if there.status_code == 200:
            return digest
        begun = requests.post(f"{self._url}/blobs/uploads/", headers=headers, timeout=60)
        begun.raise_for_status()
        place = begun.headers["Location"]
        sent = requests.put(
            f"{place}{'&' if '?' in place else '?'}digest={digest}",
            data=data,
            headers={**headers, "Content-Type": "application/octet-stream"},
            timeout=300,
        )
        sent.raise_for_status()
        return digest


def _config(image: Image, layers: Sequence[Layer]) -> dict[str, Any]:
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {
        "architecture": "amd64",
        "os": "linux",
        "created": image.created,
        "config": {
            "Env": [f"{name}={value}" for name, value in {"PATH": path, **image.env}.items()],
            "Entrypoint": list(image.entrypoint) or None,
            "Cmd": ["python3"],
            "User": image.user,
            "WorkingDir": image.workdir,
            "Labels": dict(image.labels) or None,
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": image.created} for _ in layers],
    }
