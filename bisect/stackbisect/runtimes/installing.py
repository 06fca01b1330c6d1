"""How one version of a component gets into a container: pip, apt, or a script of the user's own."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stackbisect.errors import UsageError
from stackbisect.probe import InfrastructureError
from stackbisect.spaces.components import Kind

Way = Literal["graft", "pip", "apt", "scripts"]

_BUILT_IN: tuple[Way, ...] = ("graft", "pip", "apt")

FOLDER = "/.stackbisect"
"""Where a build keeps its scripts in the container; gone before the image is made."""

_REBUILT = re.compile(r" \(files [0-9a-f]+\)$| in /")

_PIP = """
for python in python3 python; do
    command -v "$python" >/dev/null && "$python" -c 'import pip' >/dev/null 2>&1 && break
    python=
done
[ -n "$python" ] || { echo "no pip in this image: python3 -m pip does not start" >&2; exit 1; }
export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
"""

_APT = """
export DEBIAN_FRONTEND=noninteractive
name={name} version={version}
apt-get update -q
apt-get install -q -y --no-install-recommends --no-remove --allow-downgrades "$name=$version"
found=$(dpkg-query -W -f '${{Version}}' "$name")
if [ "$found" != "$version" ]; then
    echo "asked for $name $version, installed is $found" >&2
    exit 1
fi
"""


@dataclass(frozen=True)
class Swapping:
    """What `--swap` asked for: `graft`, `pip`, `apt`, or a folder of `install-NAME` scripts.

    `began_with` is the digest that the bisection began with; "" where that is now.
    """

    way: Way = "graft"
    folder: Path | None = None
    began_with: str = ""

    @classmethod
    def parse(cls, text: str) -> Swapping:
        """Read the option. Raises UsageError."""
        for way in _BUILT_IN:
            if text == way:
                return cls(way)
        folder = Path(text)
        if not folder.is_dir():
            raise UsageError(
                f"--swap: expected graft, pip, apt or a folder of install-NAME scripts, "
                f"found {text!r}"
            )
        return cls("scripts", folder.absolute())

    @property
    def digest(self) -> str:
        """What makes this way give other images than another one."""
        if self.folder is None:
            return self.way
        found = hashlib.sha256()
        for script in sorted(self.folder.glob("install-*")):
            found.update(f"{script.name}\0".encode() + script.read_bytes() + b"\0")
        return f"scripts:{found.hexdigest()}"

    def check(self) -> None:
        """Raise InfrastructureError where the scripts are others than the bisection began with."""
        if self.began_with and self.digest != self.began_with:
            raise InfrastructureError(
                f"the scripts install-* in {self.folder} are not those that the bisection began "
                "with: bring them back and resume, or begin again with --fresh"
            )

    def script(self, name: str) -> bytes | None:
        """The user's own script for a component; None where there is none."""
        if self.folder is None:
            return None
        place = self.folder / f"install-{name}"
        return place.read_bytes() if place.is_file() else None

    def installs(self, kind: Kind, name: str, version: str | None) -> bool:
        """True where a swap of this component is an installation by this way, not a graft."""
        if version is None or _REBUILT.search(version):
            return False  # what is absent, or was built twice, no index has
        if self.way == "pip":
            return kind == "distribution"
        if self.way == "apt":
            return kind == "package"
        return self.script(name) is not None


def pip(words: str) -> str:
    """A script that calls the image's own pip."""
    return f'{_PIP}"$python" -m pip {words}\n'


def plain_version(value: str) -> str:
    """A component's value without what tells two builds of one version apart."""
    return value.partition(" (files ")[0]


@dataclass(frozen=True)
class Step:
    """One run in the container: a POSIX shell script, and files beside it."""

    script: str
    files: Mapping[str, bytes]
    what: str


def step(kind: Kind, name: str, version: str, swapping: Swapping) -> Step:
    """How one version of one component is installed. Raises UsageError for a kind that has none."""
    what = f"{name} {version}"
    own = swapping.script(name)
    if own is not None:
        script = f"chmod 755 {FOLDER}/install\n{FOLDER}/install {shlex.quote(version)}\n"
        return Step(script, {"install": own}, f"install-{name} {version}")
    if kind == "distribution":
        wanted = shlex.quote(f"{name}=={version}")
        script = pip(f"install --no-deps {wanted}")
        return Step(script, {}, f"pip install {name}=={version}")
    if kind == "package":
        fields = {"name": shlex.quote(name), "version": shlex.quote(version)}
        return Step(_APT.format(**fields), {}, f"apt-get install {name}={version}")
    raise UsageError(f"a {kind} has no versions to install: {what}")
