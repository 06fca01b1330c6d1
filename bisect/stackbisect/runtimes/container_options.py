"""Docker's own option texts (`--mount`, `--gpus`, …) read into what the engine's API takes."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from typing import Any

from stackbisect.errors import UsageError
from stackbisect.probe import ContainerOptions

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgtp]?)i?b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_CDI_DEVICE = re.compile(r"[^/=\s]+/[^/=\s]+=\S+")
_SECRET_NAME = re.compile(
    r"secret|token|passw|passphrase|credential|api_?key|access_?key|private_?key|_pat$|_auth$|_key$",
    re.IGNORECASE,
)
_URL_LOGIN = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")


class OptionError(UsageError):
    """A container option that cannot be read; the text names option, value and what is expected."""


def host_config(options: ContainerOptions) -> dict[str, Any]:
    """Return the `HostConfig` fields of the engine's API for `options`.

    Raises OptionError. Nothing on this host is looked at: paths belong to the daemon's host.
    """
    found: dict[str, Any] = {
        "Mounts": [mount(text) for text in options.mounts],
        "ReadonlyRootfs": options.read_only,
    }
    if options.shm_size:
        found["ShmSize"] = size("--shm-size", options.shm_size)
    if options.ipc:
        found["IpcMode"] = options.ipc
    if options.network:
        found["NetworkMode"] = network(options.network)
    if options.ulimits:
        found["Ulimits"] = [ulimit(text) for text in options.ulimits]
    requests = [gpus(options.gpus)] if options.gpus else []
    named = [text for text in options.devices if _CDI_DEVICE.fullmatch(text)]
    if named:
        requests.append({"Driver": "cdi", "DeviceIDs": named})
    if requests:
        found["DeviceRequests"] = requests
    found["Devices"] = [device(text) for text in options.devices if text not in named]
    return found


def environment(options: ContainerOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `--env`; a bare NAME takes its value from `environ`.

    Docker leaves out a bare NAME that is not set. Here that is an OptionError: two probes, one
    with the variable and one (after a resume elsewhere) without, must never be compared.
    """
    found: dict[str, str] = {}
    for text in options.env:
        name, given, value = text.partition("=")
        if not name or name != name.strip():
            raise OptionError(f"--env: expected NAME=VALUE or NAME, found {hide_secret(text)!r}")
        if not given and name not in environ:
            raise OptionError(
                f"--env {name}: expected a variable that is set here, found none; "
                f"export {name} or write --env {name}=VALUE"
            )
        found[name] = value if given else environ[name]
    return found


def secret_values(variables: Mapping[str, str], bare: frozenset[str] = frozenset()) -> list[str]:
    """Return the values that must never be written to a log, longest first.

    These are values of variables with a telling name and those in `bare` (given as `--env NAME`,
    which is how one passes a secret), and logins inside URLs. Values under 6 characters are left
    out: hiding every "1" of a log would hide the log.
    """
    found = {value for name, value in variables.items() if name in bare or is_secret_name(name)}
    for value in variables.values():
        found.update(_URL_LOGIN.findall(value))
    return sorted((value for value in found if len(value) >= 6), key=len, reverse=True)


def is_secret_name(name: str) -> bool:
    """True where a variable of this name usually holds a credential."""
    return _SECRET_NAME.search(name) is not None


def hide_secret(text: str) -> str:
    """Return an `--env` text fit for a log: NAME=<hidden> where the name is telling."""
    name, given, value = text.partition("=")
    if given and is_secret_name(name):
        return f"{name}=<hidden>"
    return name + given + _URL_LOGIN.sub("<hidden>", value)


def mount(text: str) -> dict[str, Any]:
    """Read one `--mount` text (`type=bind,src=/a,dst=/b,readonly`) into an API `Mount`."""
    found: dict[str, Any] = {"Type": "volume", "ReadOnly": False}
    more: dict[str, dict[str, Any]] = {}
    for item in _fields("--mount", text):
        key, given, value = item.partition("=")
        key = key.strip().lower()
        if key in ("readonly", "ro", "volume-nocopy", "bind-nonrecursive"):
            flag = _flag("--mount", item, value if given else "true")
            if key in ("readonly", "ro"):
                found["ReadOnly"] = flag
            elif key == "volume-nocopy":
                more.setdefault("VolumeOptions", {})["NoCopy"] = flag
            else:
                more.setdefault("BindOptions", {})["NonRecursive"] = flag
            continue
        if not given:
            raise OptionError(f"--mount {text!r}: expected key=value, found {item!r}")
        _set_mount_field(text, found, more, key, value)
    _check_mount(text, found, more)
    return {**found, **more}


def _set_mount_field(
    text: str, found: dict[str, Any], more: dict[str, dict[str, Any]], key: str, value: str
) -> None:
    if key == "type":
        found["Type"] = value.lower()
    elif key in ("source", "src"):
        found["Source"] = value
    elif key in ("target", "dst", "destination"):
        found["Target"] = value
    elif key == "consistency":
        found["Consistency"] = value.lower()
    elif key == "bind-propagation":
        more.setdefault("BindOptions", {})["Propagation"] = value.lower()
    elif key == "volume-driver":
        driver = more.setdefault("VolumeOptions", {}).setdefault("DriverConfig", {})
        driver["Name"] = value
    elif key == "volume-opt":
        name, _, setting = value.partition("=")
        driver = more.setdefault("VolumeOptions", {}).setdefault("DriverConfig", {})
        driver.setdefault("Options", {})[name] = setting
    elif key == "volume-label":
        name, _, setting = value.partition("=")
        more.setdefault("VolumeOptions", {}).setdefault("Labels", {})[name] = setting
    elif key == "tmpfs-size":
        more.setdefault("TmpfsOptions", {})["SizeBytes"] = size("--mount tmpfs-size", value)
    elif key == "tmpfs-mode":
        more.setdefault("TmpfsOptions", {})["Mode"] = _octal(text, value)
    else:
        raise OptionError(f"--mount {text!r}: unknown key {key!r}")


def _check_mount(text: str, found: dict[str, Any], more: dict[str, dict[str, Any]]) -> None:
    kind = found["Type"]
    if kind not in ("bind", "volume", "tmpfs"):
        raise OptionError(f"--mount {text!r}: expected type bind, volume or tmpfs, found {kind!r}")
    if not found.get("Target"):
        raise OptionError(f"--mount {text!r}: expected a target (dst=/path), found none")
    if not found["Target"].startswith("/"):
        raise OptionError(
            f"--mount {text!r}: expected an absolute target, found {found['Target']!r}"
        )
    if kind == "bind" and not found.get("Source", "").startswith("/"):
        raise OptionError(f"--mount {text!r}: expected an absolute source for a bind mount")
    if kind == "tmpfs" and "Source" in found:
        raise OptionError(f"--mount {text!r}: a tmpfs has no source")
    wrong = set(more) - {f"{kind.capitalize()}Options"}
    if wrong:
        raise OptionError(f"--mount {text!r}: {sorted(wrong)[0]} do not belong to type {kind}")


def size(option: str, text: str) -> int:
    """Return the bytes that a size such as `64m`, `1.5g` or `2GiB` means (powers of 1024)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise OptionError(f"{option}: expected a size such as 64m or 2g, found {text!r}")
    return int(float(match[1]) * 1024 ** _POWERS[match[2].lower()])


def ulimit(text: str) -> dict[str, Any]:
    """Read `name=soft[:hard]` into an API `Ulimit`; -1 is no limit."""
    match = re.fullmatch(r"([a-z]+)=(-?\d+)(?::(-?\d+))?", text.strip())
    if match is None:
        raise OptionError(f"--ulimit: expected NAME=SOFT[:HARD], found {text!r}")
    soft = int(match[2])
    hard = int(match[3]) if match[3] else soft
    if hard != -1 and (soft > hard or soft == -1):
        raise OptionError(f"--ulimit {text!r}: the soft limit is above the hard limit")
    return {"Name": match[1], "Soft": soft, "Hard": hard}


def device(text: str) -> dict[str, str]:
    """Read `HOST[:CONTAINER[:rwm]]` into an API `DeviceMapping`."""
    parts = text.split(":")
    if len(parts) == 2 and re.fullmatch(r"[rwm]+", parts[1]):
        parts.insert(1, parts[0])
    rights = parts[2] if len(parts) == 3 else "rwm"
    paths = [parts[0], parts[1] if len(parts) > 1 else parts[0]]
    sound = all(path.startswith("/") for path in paths) and re.fullmatch(r"[rwm]+", rights)
    if len(parts) > 3 or not sound:
        raise OptionError(
            f"--device: expected /HOST[:/CONTAINER[:rwm]] or VENDOR/CLASS=NAME, found {text!r}"
        )
    return {"PathOnHost": paths[0], "PathInContainer": paths[1], "CgroupPermissions": rights}


def gpus(text: str) -> dict[str, Any]:
    """Read `all`, a number or `"device=0,1",capabilities=utility` into an API `DeviceRequest`.

    As with docker, the value is one CSV line: several devices need their own quotes.
    """
    found: dict[str, Any] = {"Driver": "", "Capabilities": [["gpu"]], "Options": {}}
    seen: set[str] = set()
    for item in _fields("--gpus", text):
        key, given, value = item.partition("=")
        if not given:
            key, value = "count", key
        if key in seen:
            raise OptionError(
                f"--gpus {text!r}: {key} stands there twice; "
                "devices by number are '\"device=0,1\"', with both kinds of quotes"
            )
        seen.add(key)
        if key == "count":
            if value != "all" and not value.isdigit():
                raise OptionError(f"--gpus: expected all or a number, found {value!r}")
            found["Count"] = -1 if value == "all" else int(value)
        elif key == "device":
            found["DeviceIDs"] = value.split(",")
        elif key == "driver":
            found["Driver"] = value
        elif key == "capabilities":
            found["Capabilities"] = [sorted({"gpu", *value.split(",")})]
        elif key == "options":
            pairs = (pair.partition("=") for pair in value.split(","))
            found["Options"] = {name: setting for name, _, setting in pairs}
        else:
            raise OptionError(f"--gpus {text!r}: unknown key {key!r}")
    if "Count" in found and "DeviceIDs" in found:
        raise OptionError(
            f"--gpus {text!r}: a count and devices exclude each other; "
            "several devices need quotes, as in '\"device=0,1\"'"
        )
    if "DeviceIDs" not in found:
        found.setdefault("Count", 1)
    return found


def network(text: str) -> str:
    """Return the network's name; docker's long form (`name=…,alias=…`) is refused."""
    if "=" in text or "," in text:
        raise OptionError(f"--network: expected the name of one network, found {text!r}")
    return text


def _fields(option: str, text: str) -> list[str]:
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error as error:
        raise OptionError(
            f"{option} {text!r}: not a line of comma-separated values: {error}"
        ) from None
    if len(rows) != 1 or not rows[0]:
        raise OptionError(f"{option}: expected comma-separated values, found {text!r}")
    return rows[0]


def _flag(option: str, item: str, value: str) -> bool:
    if value.lower() in ("1", "t", "true"):
        return True
    if value.lower() in ("0", "f", "false"):
        return False
    raise OptionError(f"{option}: expected true or false, found {item!r}")


def _octal(text: str, value: str) -> int:
    try:
        return int(value, 8)
    except ValueError:
        raise OptionError(f"--mount {text!r}: expected an octal mode, found {value!r}") from None
