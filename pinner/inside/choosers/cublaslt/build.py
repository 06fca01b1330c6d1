"""Compiles the library that stands in front of cuBLASLt, once for each source and compiler.

`python -m pinner.inside.choosers.cublaslt.build OUT.so` builds it beforehand, for a machine without
a compiler or with an older glibc; PINNER_CUBLASLT_LIBRARY then names the file.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ... import c_compiler
from ...faults import PinnerError

if TYPE_CHECKING:
    from typing import List, Mapping, Optional, Sequence

PREBUILT = "PINNER_CUBLASLT_LIBRARY"
CACHE = c_compiler.CACHE
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
LIBRARIES = ("-ldl", "-lpthread")
_OURS = {"pinner_cublaslt_source", "pinner_cublaslt_layout"}


class BuildFault(PinnerError):
    """The library cannot be built, or the one that was built beforehand cannot be used."""


def source_folder() -> str:
    """Return the folder of the C source."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "interpose")


def sources() -> List[str]:
    """Return the C files and headers, in a fixed order."""
    folder = source_folder()
    names = [name for name in os.listdir(folder) if name.endswith((".c", ".h"))]
    return [os.path.join(folder, name) for name in sorted(names)]


def source_digest() -> str:
    """Return the digest of the C source, which the library carries."""
    import hashlib

    digest = hashlib.sha256()
    for path in sources():
        with open(path, "rb") as source:
            text = source.read()
        digest.update(("%s %d\n" % (os.path.basename(path), len(text))).encode("ascii"))
        digest.update(text)
    return digest.hexdigest()[:32]


def library(environ: Mapping[str, str]) -> str:
    """Return the path of the library: the one PINNER_CUBLASLT_LIBRARY names, or one from the cache.

    Raises BuildFault where there is none and none can be compiled.
    """
    prebuilt = environ.get(PREBUILT)
    if prebuilt:
        return _checked(os.path.abspath(prebuilt))  # the loader would search its own folders
    compiler = find_compiler(environ)
    path = os.path.join(cache_folder(environ), _name(compiler))
    if not os.path.exists(path):
        compile_to(path, compiler)
    return path


def find_compiler(environ: Mapping[str, str]) -> List[str]:
    """Return the compiler's command: $CC, or the first of cc, gcc, clang. Raises BuildFault."""
    try:
        wanted = c_compiler.wanted(environ)
    except ValueError as error:
        raise BuildFault(
            "expected the command of a C compiler in CC, found %r: %s" % (environ["CC"], error)
        ) from None
    for words in [wanted] if wanted else [[name] for name in c_compiler.NAMES]:
        found = c_compiler.program(words, environ)
        if found is not None:
            return found
    raise BuildFault(
        "expected a C compiler to build the library that watches cuBLASLt, found none (looked for "
        "%s): install gcc or clang, set CC, build it on another machine with `python -m "
        "pinner.inside.choosers.cublaslt.build OUT.so` and name it in %s, or say --cublaslt off"
        % (" ".join(wanted) or ", ".join(c_compiler.NAMES), PREBUILT)
    )


def cache_folder(environ: Mapping[str, str]) -> str:
    """Return the folder of built libraries; it is made by `compile_to`."""
    return os.path.join(environ.get(CACHE) or c_compiler.user_cache(environ), "cublaslt")


def compile_to(path: str, compiler: Sequence[str], extra: Sequence[str] = ()) -> None:
    """Compile to `path`, which then is whole or not there. Raises BuildFault.

    Any number of processes may do this at once: each renames a file of its own.
    """
    import tempfile

    folder = os.path.dirname(os.path.abspath(path))
    try:
        os.makedirs(folder, exist_ok=True)
        handle, hidden = tempfile.mkstemp(prefix=".building-", suffix=".so", dir=folder)
    except OSError as error:
        raise BuildFault(
            "cannot write the library that watches cuBLASLt into %s: %s; set %s to a folder that "
            "can be written" % (folder, error.strerror, CACHE)
        ) from None
    os.close(handle)
    try:
        done = c_compiler.run(command(compiler, hidden, extra))
        if done.returncode != 0:
            raise BuildFault(_why(compiler, done.stdout))
        os.chmod(hidden, 0o755)
        os.replace(hidden, path)
    finally:
        if os.path.exists(hidden):
            os.unlink(hidden)


def command(compiler: Sequence[str], out: str, extra: Sequence[str] = ()) -> List[str]:
    """Return the command that compiles the library to `out`."""
    files = [path for path in sources() if path.endswith(".c")]
    define = '-DPINNER_SOURCE="%s"' % source_digest()
    return [*compiler, *FLAGS, *extra, define, *files, "-o", out, *LIBRARIES]


def digest_of(path: str) -> str:
    """Return the source digest that the library at `path` carries. Raises BuildFault."""
    return str(_ask(path, "pinner_cublaslt_source"))


def _checked(path: str) -> str:
    if not os.path.isfile(path):
        raise BuildFault("%s names %s, and there is no such file" % (PREBUILT, path))
    _refuse_if_strange(path)
    expected = source_digest()
    found = digest_of(path)
    if found != expected:
        raise BuildFault(
            "%s names %s, which was built from other source (%s, expected %s): build it again with "
            "`python -m pinner.inside.choosers.cublaslt.build OUT.so`"
            % (PREBUILT, path, found, expected)
        )
    return path


def _refuse_if_strange(path: str) -> None:
    """Loading a library runs its code: what is not ours is not loaded to be asked who it is."""
    with open(path, "rb") as source:
        content = source.read()
    missing = [name for name in sorted(_OURS) if name.encode("ascii") not in content]
    if content[:4] != b"\x7fELF" or missing:
        raise BuildFault(
            "%s names %s, which is not the library that watches cuBLASLt: build one with `python "
            "-m pinner.inside.choosers.cublaslt.build OUT.so`" % (PREBUILT, path)
        )


def _ask(path: str, function: str) -> str:
    import ctypes

    try:
        ask = getattr(ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW), function)
    except (OSError, AttributeError) as error:
        raise BuildFault(
            "%s names %s, which cannot be loaded here: %s" % (PREBUILT, path, error)
        ) from None
    ask.restype = ctypes.c_char_p
    return str(ask().decode("ascii"))


def _name(compiler: Sequence[str]) -> str:
    """Return the file name under which this source, built by this compiler here, is kept."""
    import hashlib

    machine = (os.uname().machine, _libc())
    made_by = "\n".join([c_compiler.identity(compiler), *FLAGS, *machine])
    short = hashlib.sha256(made_by.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return "interpose-%s-%s.so" % (source_digest(), short)


def _libc() -> str:
    if "CS_GNU_LIBC_VERSION" in os.confstr_names:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    return ""


def _why(compiler: Sequence[str], output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    first = next((line for line in lines if "error" in line), lines[0] if lines else "no output")
    return (
        "%s cannot build the library that watches cuBLASLt: %s (name another compiler in CC, a "
        "library built elsewhere in %s, or say --cublaslt off)"
        % (" ".join(compiler), first, PREBUILT)
    )


def main(words: Optional[Sequence[str]] = None) -> int:
    """Build the library to the one path given."""
    given = list(sys.argv[1:] if words is None else words)
    if len(given) != 1 or given[0].startswith("-"):
        sys.stderr.write("usage: python -m pinner.inside.choosers.cublaslt.build OUT.so\n")
        return 64
    try:
        compile_to(os.path.abspath(given[0]), find_compiler(os.environ))
    except BuildFault as error:
        sys.stderr.write("pinner: %s\n" % error)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
