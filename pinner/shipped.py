"""Finds the files that ship beside the code: the configs and the injection folder."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def inside_dir() -> Path:
    """The folder that runs in the user's processes and is mounted into containers."""
    return _existing(_PACKAGE / "inside", "the part of pinner that runs in other processes")


def inject_dir() -> Path:
    """The folder that goes in front of PYTHONPATH; it holds `sitecustomize.py` and nothing else."""
    folder = _existing(_PACKAGE / "inside" / "inject", "the injection folder")
    _existing(folder / "sitecustomize.py", "the injection file")
    return folder


def configs_dir() -> Path:
    """The folder of policy profiles and metric taps.

    `pinner/configs` in a wheel, `configs/` in a checkout. An editable install copies nothing
    into the package, so asking there first never finds a stale copy.
    """
    in_wheel = _PACKAGE / "configs"
    if in_wheel.is_dir():
        return in_wheel
    return _existing(_PACKAGE.parent / "configs", "the configs folder")


def taps_dir() -> Path:
    """The metric taps that ship with pinner."""
    return _existing(configs_dir() / "taps", "the folder of metric taps")


def profiles_dir() -> Path:
    """The policy profiles that ship with pinner."""
    return _existing(configs_dir() / "profiles", "the folder of policy profiles")


def _existing(path: Path, what: str) -> Path:
    if not path.exists():
        raise FileNotFoundError(
            f"expected {what} at {path}, found nothing; "
            "the installation is incomplete or zipped: reinstall pinner-stackbisect"
        )
    return path
