"""Versions of a Python package, from the index that pip is configured for."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

from stackbisect.errors import UsageError
from stackbisect.probe import Candidate, InfrastructureError
from stackbisect.runtimes.base_python import Base
from stackbisect.spaces import versions, window


def space(
    base: Base, package: str, good: str | None, bad: str, *, pre: bool, environ: Mapping[str, str]
) -> window.Space:
    """The versions from the good end to the bad end; without a good end from the oldest on.

    Pre-releases between them count only with `pre`; one that is named as an end always does, and
    so does a yanked one. Raises UsageError for an end that does not exist.
    """
    listed = list(list_versions(base, package, pre=pre, environ=environ))
    notes: list[str] = []
    ends: list[str | None] = []
    for name, wanted in (("--good", good), ("--bad", bad)):
        if wanted is None:
            ends.append(None)
            continue
        found = next((v for v in listed if versions.same(v, wanted)), None)
        if found is None:
            if not versions.is_version(wanted) or not can_be_had(base, package, wanted, environ):
                raise window.no_such(f"{name}: {package} version", wanted, listed)
            found = wanted
            listed.insert(sum(versions.order(v) < versions.order(found) for v in listed), found)
            notes.append(f"{name} {wanted} is not listed by the index (yanked or a pre-release)")
        ends.append(found)
    first, last = ends
    assert last is not None
    names, more = window.cut(listed, first, last)
    candidates = tuple(
        Candidate(version, version, position, {"package": package, "version": version})
        for position, version in enumerate(names)
    )
    return window.Space(candidates, (), (*notes, *more))


def between(
    base: Base, package: str, good: str, bad: str, *, environ: Mapping[str, str]
) -> list[str]:
    """The versions from `good` to `bad`, in that direction, both included.

    Pre-releases count where one of the ends is one. An end that the index does not list (a private
    build, a yanked version) keeps its place in the order; yanked ones between are left out. Raises
    InfrastructureError where the index does not answer.
    """
    pre = any(versions.is_prerelease(end) for end in (good, bad))
    try:
        listed = list(list_versions(base, package, pre=pre, environ=environ))
    except UsageError:  # the index has never heard of it
        listed = []
    ends = []
    for end in (good, bad):
        found = next((each for each in listed if versions.same(each, end)), None)
        if found is None:
            found = end
            listed.insert(sum(versions.order(v) < versions.order(end) for v in listed), end)
        ends.append(found)
    return window.cut(listed, ends[0], ends[1])[0]


def list_versions(
    base: Base, package: str, *, pre: bool, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """All versions the index has for this interpreter, oldest first; yanked ones are left out.

    Raises InfrastructureError where the index does not answer, UsageError where it has none.
    """
    words = ["index", "versions", package, *(["--pre"] if pre else []), *base.index_args]
    done = subprocess.run(
        base.pip(*words), capture_output=True, text=True, env=base.environ(environ), check=False
    )
    trouble = base.trouble(done.stderr)
    if done.returncode and trouble:
        raise InfrastructureError(f"the package index does not answer: {trouble}")
    if done.returncode:
        raise UsageError(f"no versions of {package}: {_error(done.stderr)}")
    match = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if match is None:
        raise InfrastructureError(
            f"expected 'Available versions:' from pip index versions {package}, "
            f"found {done.stdout.strip()[:200]!r}"
        )
    return tuple(reversed([version.strip() for version in match[1].split(",")]))


def can_be_had(base: Base, package: str, version: str, environ: Mapping[str, str]) -> bool:
    """Whether the index has one version all the same: a yanked one, say.

    Raises InfrastructureError where the index does not answer.
    """
    words = ["install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet"]
    done = subprocess.run(
        base.pip(*words, *base.index_args, f"{package}=={version}"),
        capture_output=True,
        text=True,
        env=base.environ(environ),
        check=False,
    )
    if done.returncode and base.trouble(done.stderr):
        raise InfrastructureError(f"the package index does not answer: {base.trouble(done.stderr)}")
    return done.returncode == 0


def _error(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("ERROR")]
    return (lines or text.strip().splitlines() or ["pip gave no reason"])[-1].strip()
