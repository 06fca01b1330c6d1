"""Removes what tells who found something and where: paths, users, hosts, addresses, secrets."""

from __future__ import annotations

import getpass
import io
import keyword
import os
import pwd
import re
import socket
import tokenize
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

USER, HOST, GONE = "user", "host", "(removed)"
_SHORT = 3
# Names of accounts and machines that are words of every report, and tell nothing.
_WORDS = """
    root user users admin ubuntu debian nobody daemon guest test runner build docker container
    localhost localdomain local host python torch triton numpy scipy aten cuda main out input
    good bad stack default repro digest float32 bfloat16 float16 float64 int64 int32
"""
_COMMON = frozenset(_WORDS.split())
# What every machine has, and what says which library was used.
_SYSTEM = ("usr", "lib", "lib64", "bin", "sbin", "etc", "proc", "sys", "dev", "opt")
_HOSTS = """
    docker.io nvcr.io ghcr.io quay.io gcr.io github.com gitlab.com pytorch.org python.org nvidia.com
"""
_PUBLIC = frozenset(_HOSTS.split())
_SECRET = re.compile(r"token|secret|password|passwd|credential|api_?key|private", re.IGNORECASE)
# Not after a word, a bracket or a dot: there it divides, or goes on.
_PATH = re.compile(r"(?<![\w)\]}.:/~])(?:file:)?/[\w.@+~-]+(?:/[\w.@+~-]*)+")
_HOME = re.compile(r"(?:/home|/Users|[A-Za-z]:\\+Users)[/\\]+[^\s/\\:'\"]+", re.IGNORECASE)
_TILDE = re.compile(r"(?<!\w)~[\w.-]*(?:/[\w.@+~-]+)+")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_URL = re.compile(r"\b([a-z][a-z0-9+]*://)(?:[^\s/@]*@)?([^\s/:@'\"]+)(:\d+)?")
# With a port, or before what has a tag or a digest.
_IMAGE = re.compile(
    r"(?<![\w./@-])(?:([a-z0-9-]+(?:\.[a-z0-9-]+)*:\d+)(?=/[a-z])"
    r"|([a-z0-9-]+(?:\.[a-z0-9-]+)+)(?=/[a-z][\w./-]*[:@]))"
)


@dataclass(frozen=True)
class Personal:
    """Names to remove: of users, of hosts; folders that stand for a short name ("~")."""

    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    folders: Mapping[str, str] = field(default_factory=dict)


def here(environ: Mapping[str, str], workdir: str) -> Personal:
    """Of whoever runs this, and of this machine."""
    users = [environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "USERNAME")]
    homes = [environ.get("HOME", ""), os.path.expanduser("~")]
    hosts = [environ.get("HOSTNAME", ""), socket.gethostname()]
    try:
        users.append(getpass.getuser())
        users.append(pwd.getpwuid(os.getuid()).pw_gecos.partition(",")[0])
    except (KeyError, OSError):
        pass  # an account without a name
    users += [os.path.basename(home) for home in homes]
    folders = {workdir: ".", **dict.fromkeys(homes, "~")}
    return Personal(tuple(users), tuple(hosts), {k: v for k, v in folders.items() if len(k) > 1})


def prose(text: str, names: Personal) -> str:
    """Text for people without what is personal in it."""
    return _names(_places(text, names), names)


def code(text: str, names: Personal) -> str:
    """A Python program without what is personal in it.

    Its names are changed everywhere alike, so that it stays the same program; paths, addresses and
    hosts in strings and comments alone, where no operator is meant.
    """
    return _names(_in_strings(text, lambda part: _places(part, names)), names)


def variables(environ: Mapping[str, str], names: Personal) -> dict[str, str]:
    """Variables without what is personal, and without secrets."""
    return {
        name: GONE if _SECRET.search(name) else prose(value, names)
        for name, value in environ.items()
    }


def _places(text: str, names: Personal) -> str:
    text = _URL.sub(_url, text)
    text = _MAIL.sub(f"{USER}@{HOST}", text)
    return _paths(_IMAGE.sub(_image, text), names)


def _paths(text: str, names: Personal) -> str:
    for folder, short in sorted(names.folders.items(), key=lambda pair: -len(pair[0])):
        text = re.sub(re.escape(folder.rstrip("/")) + r"(?![\w.-])", short, text)
    text = _HOME.sub("~", text)
    text = _PATH.sub(lambda match: _last_of(match[0]), text)
    return _TILDE.sub(lambda match: _last_of(match[0]), text)


def _last_of(path: str) -> str:
    """A path without the folders that somebody chose; its last part says what it is."""
    parts = [part for part in path.removeprefix("file:").split("/") if part]
    if path.startswith("/") and parts[0] in _SYSTEM and "home" not in parts:
        return path
    return f"…/{parts[-1]}" if len(parts) > 1 else "…"


def _url(match: re.Match[str]) -> str:
    scheme, host, port = match.groups()
    return f"{scheme}{host}{port or ''}" if _public(host) else f"{scheme}{HOST}"


def _image(match: re.Match[str]) -> str:
    return match[0] if _public(match[1] or match[2]) else HOST


def _public(host: str) -> bool:
    return host in _PUBLIC or any(host.endswith(f".{each}") for each in _PUBLIC)


def _names(text: str, names: Personal) -> str:
    text = _words(text, _parts_of(names.hosts), HOST)
    return _words(text, names.users, USER)


def _parts_of(hosts: Iterable[str]) -> list[str]:
    """Hosts, whole and without their domain."""
    return [part for host in hosts for part in (host, host.partition(".")[0])]


def _words(text: str, words: Iterable[str], other: str) -> str:
    """`other` for each of the words, where no letter or digit touches it.

    Not for what every report is full of, nor for names so short that they are variables.
    """
    found = {word for word in words if len(word) >= _SHORT and not _plain_word(word)}
    for word in sorted(found, key=lambda each: (-len(each), each)):
        pattern = rf"(?<![^\W_]){re.escape(word)}(?![^\W_])"
        text = re.sub(pattern, other, text, flags=re.IGNORECASE)
    return text


def _plain_word(word: str) -> bool:
    return word.lower() in _COMMON or keyword.iskeyword(word)


def _in_strings(text: str, change: Callable[[str], str]) -> str:
    """A program with its strings and comments changed."""
    starts = [0]
    for line in io.StringIO(text):  # as tokenize counts lines: other separators end none
        starts.append(starts[-1] + len(line))
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return change(text)
    made, done = [], 0
    for token in tokens:
        if token.type not in _TEXTS:
            continue
        begin = starts[token.start[0] - 1] + token.start[1]
        end = starts[token.end[0] - 1] + token.end[1]
        made += [text[done:begin], change(text[begin:end])]
        done = end
    return "".join([*made, text[done:]])


# Of a string with fields in it the parts between them, from Python 3.12 on.
_TEXTS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
