"""Puts the C library in front of cuBLASLt before torch is imported, and says where it is not.

The library takes the place of cuBLASLt's two functions for everything that is linked with them,
because it comes first in the order in which the loader looks names up. What was linked earlier, or
looks elsewhere, goes past it; each such way is found and named here.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from ... import facts, faults, ledger, loaded, pins, session
from ...stack_rules import named_by
from . import build, layout, table

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

CHOOSER = "cublaslt"
STEM = "libcublasLt.so"
ROUTE = "preferred_blas_library"
PREFER = "TORCH_BLAS_PREFER_CUBLASLT"
ROOM = "PINNER_CUBLASLT_RECORDS"
_MOST_RECORDS = 1 << 20
_VERSION_FACT, _GPU_FACT = "loaded:cublaslt", "gpu"
_CONSUMERS_SIZE = 1 << 16
_TOO_LATE = (
    "%s was loaded before pinner could stand in front of it: what is linked with it already goes "
    "past the lock; import torch first, or start the program with pinner"
)
_PAST = {
    "past": "%(file)s calls %(symbol)s of cuBLASLt itself, past the lock: it was loaded before "
    "pinner's library, or with RTLD_DEEPBIND",
    "elsewhere": "%(file)s calls another %(symbol)s than pinner's: a library that stands before it",
    "first": "the first %(symbol)s of this process is that of %(file)s, not pinner's: what it "
    "decides goes past the lock",
    "static": "%(file)s brings a copy of cuBLASLt of its own (%(symbol)s, linked statically): what "
    "it decides goes past the lock",
}


class Chooser:
    """The state of one process: which library stands in front, and what was said already."""

    def __init__(self, active: session.Session) -> None:
        self.session = active
        self.library: Any = None
        self.routed = False
        self._said: Set[str] = set()
        self._introduced = False

    def install(self) -> None:
        """Load the library. Ends the process where it must stand in front and cannot."""
        if self.library is not None:
            return
        before = mapped_files()
        try:
            self._load()
        except (build.BuildFault, faults.InvalidPin) as error:
            self._give_up(error)
            return
        for path in before:
            self._bypass(_TOO_LATE % path)

    def after_torch(self, torch: ModuleType) -> None:
        """Send PyTorch's own GEMMs through cuBLASLt, and look whether they would come here."""
        if self.library is None:
            return
        told = ledger.is_open()  # else a helper: it has a ledger only once it decides something
        if told:
            self._introduce()
        if getattr(torch.version, "cuda", None):
            self._route(torch, told)
        self.look()

    def look(self) -> List[Tuple[str, str, str]]:
        """Name who goes past the library; return (state, symbol, file) of all who call cuBLASLt."""
        found = consumers(self.library)
        for state, symbol, file in found:
            if state in _PAST:
                self._bypass(_PAST[state] % {"symbol": symbol, "file": file})
        return found

    def sweep(self) -> None:
        """At the end of the process: name what was not seen."""
        files = mapped_files()
        if self.library is None:
            if files:
                self._name_unwatched(files)
            return
        found = self.look()
        questions, matmuls, legacy = seen(self.library)
        if questions or matmuls or legacy:
            self._introduce()
        if self.routed:
            self._check_route()
        if files and not questions and not matmuls and not linked(found) and device_in_use():
            self._bypass(
                "%s is mapped and no call was seen: whoever uses it looks its functions up by "
                "itself (dlsym on a handle), past the lock" % ", ".join(files)
            )

    def _load(self) -> None:
        import ctypes

        active = self.session
        path = build.library(os.environ)
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_GLOBAL | os.RTLD_NOW)
            _declare(library)
        except (OSError, AttributeError) as error:
            raise build.BuildFault(
                "the library that watches cuBLASLt cannot be loaded: %s; remove %s, it is built "
                "again" % (error, path)
            ) from None
        folder = os.path.join(active.folder, CHOOSER)
        os.makedirs(folder, exist_ok=True)
        library.pinner_cublaslt_device(table.device(gpu(facts.devices())))
        settings = layout.Settings(
            layout=layout.digest(),
            enforcing=active.enforcing,
            on_miss=int(active.on_miss == "error"),
            rebuild=int(named_by(_VERSION_FACT, active.allow)),
            any_gpu=int(named_by(_GPU_FACT, active.allow)),
            capacity=capacity(os.environ),
            prefix=os.fsencode(os.path.join(folder, ledger.plain_host())),
            process=_who(active),
        )
        locked = self._pins_file()
        status = library.pinner_cublaslt_start(
            ctypes.byref(settings), None if locked is None else os.fsencode(locked)
        )
        if status:
            raise build.BuildFault(_START_FAULTS[status] % {"path": path, "pins": locked})
        self.library = library

    def _pins_file(self) -> Optional[str]:
        """Return the file of locked algorithms, made here where the launcher made none."""
        entries = pins.load().cublaslt if self.session.enforcing else []
        if not entries:
            return None
        path = os.path.join(self.session.folder, table.FILE)
        if not os.path.exists(path):
            table.write(path, entries)
        return path

    def _give_up(self, error: faults.PinnerError) -> None:
        """Without the library nothing holds: that ends a run that needs it, and is a hole else."""
        locked = self.session.enforcing and pins.load().cublaslt
        if locked or self.session.cublaslt == "on":
            faults.die(str(error))
        faults.say(str(error))
        self._bypass("what cuBLASLt chooses is not seen: %s" % error)

    def _introduce(self) -> None:
        """Write once that the library stands in front: a switch that both kinds of run set."""
        if self._introduced:
            return
        self._introduced = True
        text = "cuBLASLt's questions and matmuls pass through pinner's library"
        self._setting("interposer", "on", "set", text)

    def _route(self, torch: Any, told: bool) -> None:
        try:
            if not _is_routed(torch):  # the call prints a warning of torch's own
                torch.backends.cuda.preferred_blas_library(CHOOSER)
        except Exception as error:
            self._bypass(
                "PyTorch's GEMMs cannot be sent through cuBLASLt: %s" % faults.describe(error)
            )
            return
        self.routed = True
        if told:
            text = "PyTorch's GEMMs go through cuBLASLt, where they can be held"
            self._setting(ROUTE, CHOOSER, "set", text)

    def _check_route(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and not _is_routed(torch):
            self._bypass(
                "the program chose %s for PyTorch's GEMMs: leave "
                "torch.backends.cuda.preferred_blas_library as pinner sets it"
                % torch.backends.cuda.preferred_blas_library()
            )

    def _name_unwatched(self, files: List[str]) -> None:
        if _is_covered(self.session):
            self._bypass(
                "%s is mapped, and pinner's library is not: no CUDA build of torch was imported. "
                "Say --cublaslt on" % ", ".join(files)
            )
            return
        text = "what cuBLASLt chooses is neither recorded nor forced: --cublaslt off"
        if self.session.cublaslt != "off":
            text = "the lock was made without cuBLASLt: record again to hold what it chooses"
        self._setting("interposer", "off", "no", text)

    def _setting(self, name: str, value: str, held: str, text: str) -> None:
        line: Dict[str, Any] = {"t": "setting", "chooser": CHOOSER, "name": name, "value": value}
        line.update(held=held, text=text, time=ledger.now())
        ledger.write(line)

    def _bypass(self, text: str) -> None:
        if text in self._said:
            return
        self._said.add(text)
        line = {"t": "problem", "kind": "bypass", "chooser": CHOOSER, "kernel": "matmul"}
        ledger.write(dict(line, text=text), sync=True)


_START_FAULTS = {
    1: "%(path)s was built for another layout: remove it, it is built again",
    2: "the locked algorithms in %(pins)s are torn or of another version of pinner: enforce again",
    3: "no memory for the locked algorithms in %(pins)s",
}
_chooser: Optional[Chooser] = None
_preferring = False


def begin() -> None:
    """Take up the session of this process, and load the library where it says `--cublaslt on`."""
    global _chooser
    active = session.current()
    if _chooser is not None or active is None:
        return
    _chooser = Chooser(active)
    if active.cublaslt == "on":
        _chooser.install()


def before_torch() -> None:
    """Load the library, where the torch that is being imported is a CUDA build."""
    begin()
    if _chooser is None or _chooser.session.cublaslt != "auto":
        return
    if is_cuda_build(sys.modules.get("torch")) and _is_covered(_chooser.session):
        _chooser.install()
        if _chooser.library is not None:
            _prefer()


def after_torch(torch: ModuleType) -> None:
    """Route and check, now that torch is there."""
    if _chooser is not None:
        _chooser.after_torch(torch)
    if _preferring:
        _forget_preference()


def _prefer() -> None:
    """Let torch read its own variable, as it does once, at the first question (2.4 to 2.14).

    It goes past `os.environ`: nobody has set it, and the stack's facts must not say so.
    """
    global _preferring
    if PREFER not in os.environ:
        os.putenv(PREFER, "1")
        _preferring = True


def _forget_preference() -> None:
    """A child that inherited the variable would have another stack than its parent."""
    global _preferring
    _preferring = False
    if PREFER not in os.environ:
        os.unsetenv(PREFER)


def _is_routed(torch: Any) -> bool:
    return CHOOSER in str(torch.backends.cuda.preferred_blas_library()).lower()


def library() -> Any:
    """Return the library in front of cuBLASLt in this process (a ctypes.CDLL), or None."""
    return None if _chooser is None else _chooser.library


def finish() -> None:
    """At the end of a process that has cuBLASLt mapped: name what was not seen."""
    global _chooser
    active = session.current()
    if _chooser is None and active is not None:
        _chooser = Chooser(active)
    if _chooser is not None:
        _chooser.sweep()


def is_cuda_build(torch: Any) -> bool:
    """Whether the torch whose code is about to run was built for CUDA; looks at its files only."""
    spec = getattr(torch, "__spec__", None)
    folders = getattr(spec, "submodule_search_locations", None) or []
    return any(os.path.exists(os.path.join(each, "lib", "libtorch_cuda.so")) for each in folders)


def _is_covered(active: session.Session) -> bool:
    """Whether this run holds cuBLASLt. Routing changes bits: an enforced run does as the lock."""
    if active.cublaslt == "off":
        return False
    if active.cublaslt == "on" or not active.enforcing:
        return True
    loaded_pins = pins.load()
    return bool(loaded_pins.cublaslt) or loaded_pins.policy.get("cublaslt.interposer") == "on"


def mapped_files() -> List[str]:
    """Return the files of cuBLASLt that are mapped into this process."""
    return loaded.copies(loaded.mapped_files(), STEM)


def capacity(environ: Mapping[str, str]) -> int:
    """Return how many problems a process has room for. Raises BuildFault for what is no number."""
    text = environ.get(ROOM, str(layout.CAPACITY))
    if not text.isdigit() or not 1 <= int(text) <= _MOST_RECORDS:
        raise build.BuildFault(
            "expected a number of problems from 1 to %d in %s, found %r"
            % (_MOST_RECORDS, ROOM, text)
        )
    return int(text)


def gpu(found: Dict[str, Any]) -> str:
    """Return the GPU of some facts as it stands in keys: "NVIDIA H200 9.0 132 SMs"; "" without."""
    if "gpu" not in found:
        return ""
    words = [str(found["gpu"]), str(found.get("gpu:capability", ""))]
    if "gpu:sms" in found:
        words.append("%s SMs" % found["gpu:sms"])
    text = " ".join(word for word in words if word)
    return table.device(text).decode("utf-8", "ignore")


def device_in_use() -> bool:
    """Whether this process has a CUDA context: it then holds the driver's device file open."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return False
    for name in names:
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        if target.startswith(("/dev/nvidia-uvm", "/dev/dxg")):
            return True
    return False


def consumers(library: Any) -> List[Tuple[str, str, str]]:
    """Return (state, symbol, file) of each reference to cuBLASLt; consumers.c has the states."""
    import ctypes

    buffer = ctypes.create_string_buffer(_CONSUMERS_SIZE)
    library.pinner_cublaslt_consumers(buffer, ctypes.c_size_t(_CONSUMERS_SIZE))
    rows = buffer.value.decode("utf-8", "surrogateescape").splitlines()
    found = []
    for row in rows:
        state, symbol, file = row.split("\t", 2)
        found.append((state, symbol, file))
    return found


def linked(found: List[Tuple[str, str, str]]) -> List[str]:
    """Return the files that are linked with cuBLASLt, so that their calls would be seen.

    libcublas is there wherever cuBLASLt is, and says nothing about the program.
    """
    return [file for _, _, file in found if not os.path.basename(file).startswith("libcublas.so")]


def seen(library: Any) -> Tuple[int, int, int]:
    """Return how many questions, matmuls and legacy calls came through the library."""
    import ctypes

    counts = (ctypes.c_uint64 * 3)()
    library.pinner_cublaslt_seen(counts)
    return counts[0], counts[1], counts[2]


def _declare(library: Any) -> None:
    import ctypes

    for name in ("pinner_cublaslt_device", "pinner_cublaslt_consumers", "pinner_cublaslt_seen"):
        getattr(library, name).restype = None
    library.pinner_cublaslt_device.argtypes = [ctypes.c_char_p]
    library.pinner_cublaslt_start.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.pinner_cublaslt_start.restype = ctypes.c_int
    library.pinner_cublaslt_follow.argtypes = []
    library.pinner_cublaslt_follow.restype = ctypes.c_int


def _who(active: session.Session) -> bytes:
    """Return the "process" line of this process, as much of it as the file has room for."""
    line = ledger.identity(active)
    text = json.dumps(line, separators=(",", ":")).encode("ascii")
    if len(text) < layout.PROCESS_TEXT:
        return text
    line["argv"] = [word[:256] for word in line["argv"][:8]]
    return json.dumps(line, separators=(",", ":")).encode("ascii")[: layout.PROCESS_TEXT - 1]
