"""Stands in for FlagGems 3.0, src/flag_gems/__init__.py."""

# ruff: noqa: PLR0917 - as many arguments as the real one has

from flag_gems.utils import libentry

enabled = []


aten_lib = None
registrar = None


def enable(
    lib=aten_lib,
    unused=None,
    registrar=registrar,
    record=False,
    once=False,
    path=None,
):
    enabled.append(unused)


class use_gems:
    def __enter__(self):
        enable()

    def __exit__(self, exc_type, exc_val, exc_tb):
        enabled.pop()


__all__ = ["enable", "libentry", "use_gems"]
