"""Starts what the tests need where it does not run: Docker, Podman, image registries, Slurm.

Nothing is installed here (scripts/services.sh does that). Everything lives in one folder,
STACKBISECT_SERVICES or a folder of this user's below the temporary one, and its data stay.

    python tests/stackbisect/services.py start|stop|status
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

USER, PASSWORD = "tester", "open-sesame-42"
# bcrypt, the only form the registry takes; made with: htpasswd -nbBC 5 tester open-sesame-42
_HTPASSWD = "tester:$2y$05$AG9PnzQiwzDTfIkiUGN7eugbnZIdOI49i1AhRprfv77syrxzPlSxe\n"
SPARE_BRIDGE = "sb-spare"
_DEFAULT_SOCKET = "/var/run/docker.sock"
PROGRAMS = {
    "dockerd": "docker.io",
    "docker-registry": "docker-registry",
    "munged": "munge",
    "podman": "podman",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
}


STARTED: list[Daemon] = []
"""What this process started, in order: the tests end it when they are done."""


class ServiceMissing(Exception):
    """A service that cannot be had here; the text says what to install or do."""


def folder() -> Path:
    """Return where services keep their data; made where it is missing."""
    named = os.environ.get("STACKBISECT_SERVICES")
    place = Path(named or Path(tempfile.gettempdir(), f"stackbisect-services-{os.getuid()}"))
    place.mkdir(parents=True, exist_ok=True)
    return place.resolve()


@contextlib.contextmanager
def locked(name: str) -> Iterator[Path]:
    """Hold the folder against other test runs that want to start or make the same thing."""
    place = folder()
    with (place / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield place


@dataclass(frozen=True)
class Daemon:
    """A program that was started here, or will be: its argv, its pid file, whether it answers."""

    name: str
    argv: tuple[str, ...]
    place: Path
    answers: Callable[[], bool]
    address: str = ""

    @property
    def pid(self) -> int | None:
        """The process id of a daemon of ours that is alive."""
        return _alive(self.place / f"{self.name}.pid", PROGRAMS)

    def start(self, limit: float = 60.0) -> None:
        """Start it and wait until it answers. Raises ServiceMissing with the end of its log."""
        if self.pid is not None and self.answers():
            return
        self._forget_the_dead()
        log = self.place / f"{self.name}.log"
        with log.open("wb") as out:
            started = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        (self.place / f"{self.name}.pid").write_text(str(started.pid))
        STARTED.append(self)
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline and started.poll() is None:
            if self.answers():
                return
            time.sleep(0.1)
        self.stop()
        end = log.read_text(errors="replace").strip().splitlines()[-3:]
        raise ServiceMissing(f"{self.name} does not start: {' / '.join(end) or 'no output'}")

    def _forget_the_dead(self) -> None:
        """Remove pid files of a daemon that was killed: its number may be somebody else's by now.

        dockerd does not start where its pid file names any living process.
        """
        containerd = self.place / f"{self.name}-exec" / "containerd" / "containerd.pid"
        for file in (self.place / f"{self.name}.dockerd-pid", containerd):
            if _alive(file, (*PROGRAMS, "containerd")) is None:
                file.unlink(missing_ok=True)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, if it is ours and alive, and wait until it is gone."""
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, how)
        deadline = time.monotonic() + 40
        while self.pid is not None and time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.05)
        if self.pid is not None:
            os.kill(pid, signal.SIGKILL)
            how = signal.SIGKILL
        if how == signal.SIGKILL:
            time.sleep(2)  # its children die after it, and a new one must not meet them


def _alive(file: Path, programs: Collection[str]) -> int | None:
    """The process id in a pid file, where it is one of these programs and lives."""
    try:
        pid = int(file.read_text())
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if Path(os.fsdecode(argv[0])).name in programs else None


def docker_daemon() -> Daemon:
    """Return a Docker daemon of our own, with data, socket and processes in our folder."""
    place = folder()
    return _dockerd(place, "dockerd", _dockerd_argv(place, "dockerd"))


def spare_docker_daemon() -> Daemon:
    """Return another one that can run beside it and be killed; it does not see `hidden_folder`.

    Its containers have no way out of their network.
    """
    place = folder()
    # A bridge of its own: a daemon with none at all takes docker0 away from every other one.
    argv = [*_dockerd_argv(place, "spare"), f"--bridge={SPARE_BRIDGE}", "--iptables=false"]
    script = (
        f'mount -t tmpfs none "{hidden_folder()}"; '
        f"ip link add {SPARE_BRIDGE} type bridge 2>/dev/null && "
        f"ip addr add 172.31.247.1/24 dev {SPARE_BRIDGE}; "
        'exec "$@"'
    )
    return _dockerd(place, "spare", ["unshare", "--mount", "sh", "-c", script, "sh", *argv])


def hidden_folder() -> Path:
    """Return a folder that the spare daemon sees as an empty one."""
    place = folder() / "hidden"
    place.mkdir(exist_ok=True)
    return place


def _dockerd_argv(place: Path, name: str) -> list[str]:
    return [
        "dockerd",
        f"--host=unix://{place / name}.sock",
        f"--data-root={place / name}-data",
        f"--exec-root={place / name}-exec",
        f"--pidfile={place / name}.dockerd-pid",
    ]


def _dockerd(place: Path, name: str, argv: list[str]) -> Daemon:
    address = f"unix://{place / name}.sock"
    return Daemon(name, tuple(argv), place, lambda: docker_answers(address), address)


def docker_address() -> str:
    """Return the address of a Docker daemon that answers: the user's own, or one started here."""
    usual = os.environ.get("DOCKER_HOST") or f"unix://{_DEFAULT_SOCKET}"
    if docker_answers(usual):
        return usual
    _require("dockerd")
    if os.getuid() != 0:
        raise ServiceMissing(f"no Docker daemon answers at {usual}, and only root can start one")
    with locked("dockerd"):
        daemon = docker_daemon()
        daemon.start()
    return daemon.address


def docker_answers(address: str) -> bool:
    """True where a Docker daemon answers at a unix or tcp address."""
    kind, _, rest = address.partition("://")
    try:
        if kind == "unix":
            link = socket.socket(socket.AF_UNIX)
            link.settimeout(10)
            link.connect(rest)
        else:
            host, _, port = rest.partition(":")
            link = socket.create_connection((host, int(port or 2375)), timeout=10)
        with link:
            link.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return link.recv(64).split(b" ")[1:2] == [b"200"]
    except (OSError, ValueError):
        return False


@dataclass(frozen=True)
class RegistryService:
    """A registry that answers at `host` (127.0.0.1:PORT)."""

    host: str
    login: bool

    @property
    def headers(self) -> dict[str, str]:
        """What a request needs to be let in."""
        if not self.login:
            return {}
        token = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        return {"Authorization": f"Basic {token}"}


def registry(*, login: bool) -> RegistryService:
    """Return a registry on a free loopback port; both kinds show the same images."""
    _require("docker-registry")
    name = "registry-login" if login else "registry-open"
    with locked(name) as place:
        port_file = place / f"{name}.port"
        with contextlib.suppress(OSError, ValueError):
            found = RegistryService(f"127.0.0.1:{int(port_file.read_text())}", login)
            if registry_answers(found):
                return found
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        found = RegistryService(f"127.0.0.1:{port}", login)
        _registry_daemon(place, name, found).start()
        port_file.write_text(str(port))
    return found


def _registry_daemon(place: Path, name: str, service: RegistryService) -> Daemon:
    config = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {
            "filesystem": {"rootdirectory": str(place / "registry")},
            "delete": {"enabled": True},
        },
        "http": {"addr": service.host},
    }
    if service.login:
        passwords = place / "htpasswd"
        passwords.write_text(_HTPASSWD)
        config["auth"] = {"htpasswd": {"realm": "test", "path": str(passwords)}}
    file = place / f"{name}.yml"
    file.write_text(json.dumps(config))  # JSON is YAML
    argv = ("docker-registry", "serve", str(file))
    return Daemon(name, argv, place, lambda: registry_answers(service))


def registry_answers(service: RegistryService) -> bool:
    """True where the registry speaks its protocol and lets us in."""
    request = urllib.request.Request(f"http://{service.host}/v2/", headers=service.headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False


def podman_service() -> Daemon:
    """Return Podman's Docker-compatible service with data and socket in our folder, started.

    It pulls from the registry that lets everybody in.
    """
    _require("podman")
    if os.getuid() != 0:
        raise ServiceMissing("only root can start a Podman service of its own for the tests")
    host = registry(login=False).host
    with locked("podman") as place:
        folder = place / "podman"
        folder.mkdir(exist_ok=True)
        # Podman knows no loopback registries that go without TLS, and asks for more files and
        # processes than a machine without CAP_SYS_RESOURCE may give.
        limits = [f"{name}={_most(kind)}:{_most(kind)}" for name, kind in _LIMITS]
        # crun 1.8 wants the second version of cgroups, or the first one alone.
        engine = 'runtime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"'
        (folder / "containers.conf").write_text(
            f"[containers]\ndefault_ulimits = {json.dumps(limits)}\n[engine]\n{engine}\n"
        )
        (folder / "registries.conf").write_text(
            f'[[registry]]\nlocation = "{host}"\ninsecure = true\n'
        )
        address = f"unix://{folder}/socket"
        argv = [
            *("env", f"CONTAINERS_CONF={folder}/containers.conf"),
            f"CONTAINERS_REGISTRIES_CONF={folder}/registries.conf",
            *("podman", f"--root={folder}/storage", f"--runroot={folder}/run"),
            *("system", "service", "--time=0", address),
        ]
        daemon = Daemon("podman", tuple(argv), place, lambda: docker_answers(address), address)
        daemon.start()
    return daemon


_LIMITS = (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC))


def _most(kind: int) -> int:
    """The most of it that this process may give a container."""
    most = resource.getrlimit(kind)[1]
    return 4096 if most == resource.RLIM_INFINITY else min(most, 4096)


@dataclass(frozen=True)
class Slurm:
    """A Slurm of our own, with two nodes that are this machine; `config` is its slurm.conf."""

    config: Path
    nodes: tuple[str, ...] = ("n1", "n2")

    @property
    def environ(self) -> dict[str, str]:
        """What Slurm's programs need to find it."""
        return {"SLURM_CONF": str(self.config)}

    def call(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's programs."""
        environ = {**os.environ, **self.environ}
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60)

    def answers(self) -> bool:
        """True where jobs can run on every node."""
        try:
            found = self.call("sinfo", "--noheader", "--Node", "--format=%T")
        except (OSError, subprocess.TimeoutExpired):
            return False
        states = found.stdout.split()
        return len(states) == len(self.nodes) and set(states) <= {"idle", "mixed", "allocated"}

    def cancel_all(self) -> None:
        """End every job: a job's processes outlive the daemons."""
        if not (self.config.exists() and self._controller().pid):
            return
        self.call("scancel", "--quiet", "--me")
        deadline = time.monotonic() + 15
        while self.call("squeue", "--noheader").stdout and time.monotonic() < deadline:
            time.sleep(0.2)

    def daemons(self) -> list[Daemon]:
        """Its daemons, in the order in which they are started."""
        place = self.config.parent
        munged = [f"--socket={place}/munge/socket", f"--key-file={place}/munge/key"]
        munged += [f"--{each}={place}/munge/{each.partition('-')[0]}" for each in _MUNGE_FILES]
        argv = ("munged", "--foreground", "--force", *munged)
        socket_there = (place / "munge" / "socket").exists
        auth = Daemon("slurm-1-munged", argv, place.parent, socket_there)
        nodes = [
            Daemon(
                f"slurm-3-{node}",
                ("env", f"SLURM_CONF={self.config}", "slurmd", "-D", "-N", node),
                place.parent,
                lambda: True,
            )
            for node in self.nodes
        ]
        return [auth, self._controller(), *nodes]

    def _controller(self) -> Daemon:
        argv = ("slurmctld", "-D", "-f", str(self.config))
        return Daemon("slurm-2-controller", argv, self.config.parents[1], self._controls)

    def _controls(self) -> bool:
        return self.call("scontrol", "ping").returncode == 0


_MUNGE_FILES = ("pid-file", "log-file", "seed-file")


def slurm() -> Slurm:
    """Return a Slurm of our own that answers, started where it is not."""
    for program in ("munged", "slurmctld", "slurmd", "sbatch"):
        _require(program)
    if os.getuid() != 0:
        raise ServiceMissing("only root can start a Slurm of its own for the tests")
    with locked("slurm") as place:
        found = Slurm(place / "slurm" / "slurm.conf")
        if found.config.exists() and found._controller().pid and found.answers():
            return found
        for daemon in reversed(found.daemons()):
            daemon.stop()
        _write_slurm_config(found)
        for daemon in found.daemons():
            daemon.start()
        deadline = time.monotonic() + 60
        while not found.answers():
            if time.monotonic() > deadline:
                raise ServiceMissing(f"Slurm's nodes do not come up; see {place}/slurm-*.log")
            time.sleep(0.1)
        return found


def _write_slurm_config(found: Slurm) -> None:
    """A fresh Slurm: no cgroups, no accounting, more CPUs than the machine has."""
    place = found.config.parent
    shutil.rmtree(place, ignore_errors=True)
    for name in ("munge", "state", "spool"):
        (place / name).mkdir(parents=True, mode=0o755)
    (place / "munge" / "key").write_bytes(os.urandom(128))
    (place / "munge" / "key").chmod(0o400)
    host = socket.gethostname()
    ports = _free_ports(1 + len(found.nodes))
    lines = [
        "ClusterName=stackbisect",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={ports[0]}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        # A job that was requeued may start again when the credential of its first start is over.
        f"AuthInfo=socket={place}/munge/socket,cred_expire=10",
        "CredType=cred/munge",
        f"StateSaveLocation={place}/state",
        f"SlurmdSpoolDir={place}/spool/%n",
        f"SlurmctldPidFile={place}/controller.of-slurm",
        f"SlurmdPidFile={place}/%n.of-slurm",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "SlurmdParameters=config_overrides",
        "ReturnToService=1",
        "MpiDefault=none",
        "KillWait=2",
        "SlurmdTimeout=10",
        "SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0",
    ]
    for node, port in zip(found.nodes, ports[1:], strict=True):
        lines.append(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
            "CPUs=4 RealMemory=1000"
        )
    lines.append("PartitionName=tests Nodes=ALL Default=YES MaxTime=60 State=UP")
    found.config.write_text("\n".join(lines) + "\n")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        links = [held.enter_context(socket.socket()) for _ in range(count)]
        for link in links:
            link.bind(("127.0.0.1", 0))
        return [link.getsockname()[1] for link in links]


def stop_all() -> None:
    """End every service that was started from this folder; data stay."""
    place = folder()
    Slurm(place / "slurm" / "slurm.conf").cancel_all()
    for file in sorted(place.glob("*.pid"), reverse=True):
        Daemon(file.stem, (), place, lambda: False).stop()
        file.unlink(missing_ok=True)


def _require(program: str) -> None:
    os.environ["PATH"] = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
    if shutil.which(program) is None:
        raise ServiceMissing(
            f"needs the program {program} (Debian package {PROGRAMS[program]}; "
            "scripts/services.sh installs and starts it)"
        )


def main(words: list[str]) -> int:
    """Start, stop or show the services."""
    if words not in (["start"], ["stop"], ["status"]):
        print("usage: services.py start|stop|status", file=sys.stderr)
        return 64
    if words == ["stop"]:
        stop_all()
        return 0
    if words == ["start"]:
        try:
            print(f"docker {docker_address()}")
            print(f"registry {registry(login=False).host}")
            print(f"registry-login {registry(login=True).host}")
            print(f"podman {podman_service().address}")
            print(f"slurm {slurm().config}")
        except ServiceMissing as error:
            print(f"services: {error}", file=sys.stderr)
            return 1
        return 0
    place = folder()
    for file in sorted(place.glob("*.pid")):
        daemon = Daemon(file.stem, (), place, lambda: False)
        print(f"{file.stem} {'runs' if daemon.pid else 'is stopped'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
