"""The interpreter that environments are made from, and its pip: how both are called."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stackbisect.errors import UsageError

# `pip --python` came with pip 22.3, `--report` with 22.2, `index` with 21.2.
_OLDEST_PIP = (22, 3)
_OLDEST_PYTHON = (3, 8)

# Variables that point Python or pip at another place than the one they are called for.
_ELSEWHERE = frozenset(
    ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PINNER_SESSION")
    + ("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REPORT", "PIP_PYTHON")
)

# What pip prints when the index, the network or the disk fails, whatever the package: from its
# urllib3 retries, its own network errors and the operating system.
_TROUBLE = re.compile(
    r"(Retrying \(Retry\(total=\d+[^)]*\)\) after connection broken by .*"
    r"|.*(?:NewConnectionError|ConnectTimeoutError|ReadTimeoutError|ConnectionResetError"
    r"|Temporary failure in name resolution|Name or service not known|Network is unreachable"
    r"|Connection refused|IncompleteRead|No space left on device|Disk quota exceeded"
    r"|(?:429|5\d\d) (?:Server|Client) Error).*"
    # With no warning at all pip takes an index that answers 429 or not at all for an empty one. The
    # versions were listed before, so none at all is the index's fault (a dependency's would say
    # "(from NAME)").
    r"|.*satisfies the requirement \S+ \(from versions: none\).*)"
)


@dataclass(frozen=True)
class Base:
    """An interpreter that has venv and pip. `index_args` go to every call of pip."""

    python: str
    version: str
    index_args: tuple[str, ...] = ()

    def pip(self, *words: str) -> list[str]:
        """A call of the base's own pip."""
        return [self.python, "-m", "pip", "--no-input", "--disable-pip-version-check", *words]

    def install(self, python: Path, requirements: Sequence[str], report: Path) -> list[str]:
        """The call that installs requirements into the environment of `python`."""
        return [
            *self.pip("--python", str(python), "install", "--report", str(report)),
            *self.index_args,
            *requirements,
        ]

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment for pip and venv: without what points them elsewhere."""
        return {name: value for name, value in environ.items() if name not in _ELSEWHERE}

    @staticmethod
    def trouble(output: str) -> str:
        """The line that says that index, network or disk failed; "" where none says so."""
        match = _TROUBLE.search(output)
        return match[0].strip() if match else ""


def find_base(python: str, index_args: Sequence[str], environ: Mapping[str, str]) -> Base:
    """Look at an interpreter. Raises UsageError where it cannot be a base."""
    refuse_credentials(index_args)
    code = (
        "import json, sys, venv\n"
        "try:\n import pip; version = pip.__version__\n"
        "except ImportError: version = ''\n"
        "print(json.dumps([sys.executable, list(sys.version_info[:3]), version]))"
    )
    base = Base(python, "", tuple(index_args))
    try:
        done = subprocess.run(
            [python, "-c", code],
            capture_output=True,
            text=True,
            env=base.environ(environ),
            check=False,
        )
    except OSError as error:
        raise UsageError(f"--python {python}: cannot be started: {error.strerror}") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UsageError(f"--python {python}: needs venv, found: {last[0]}")
    executable, version, pip = json.loads(done.stdout)
    if tuple(version) < _OLDEST_PYTHON:
        text = ".".join(map(str, version))
        raise UsageError(f"--python {python}: expected Python 3.8 or newer, found {text}")
    if _numbers(pip) < _OLDEST_PIP:
        raise UsageError(
            f"--python {python}: expected pip 22.3 or newer, found {pip or 'none'}; "
            f"run {python} -m pip install --upgrade pip, or name another interpreter"
        )
    return Base(executable, ".".join(map(str, version)), tuple(index_args))


def refuse_credentials(index_args: Sequence[str]) -> None:
    """Raise UsageError for a login inside an index's address: it would be kept in the journal."""
    for word in index_args:
        if re.search(r"://[^/\s]*@", word):
            raise UsageError(
                "--index-args: an address with a login in it would be kept in the journal; "
                "give the login by pip's configuration, PIP_INDEX_URL, .netrc or keyring"
            )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
