"""Captures one call of the program: what it gets, byte for byte, in a folder of the session.

The setting names an event of a trace. When that event comes, the call's arguments are copied before
it runs, and `SESSION/capture/PID-…/call.json` with the pieces of memory beside it is written when
it has ended: whole or not at all, and on the disk. A call that cannot be written down leaves the
reason instead. The program runs on as it would have.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
from collections import deque
from typing import TYPE_CHECKING

from ... import faults, ledger
from ...faults import EvidenceError
from .. import digest

if TYPE_CHECKING:
    from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

    from .recorder import Recorder

FOLDER = "capture"
TABLE = "call.json"
VERSION = 1
_MOST_ALIGNED = 64
_GRAIN = 16  # pieces that tensors of several dtypes share begin at multiples of it
_DEVICES = ("cpu", "cuda")


class NotCaptured(Exception):
    """A call, or an argument, that cannot be written down; says which and why."""


class Awaited:
    """The event whose call is captured: the `capture` of the session's trace.

    kind, name, nth, module, phase, step, rank: as the trace has them. random: the state of the
    generator of random numbers is written, too. before: how many operations of the same place that
    come right before it are written with it, at most. folder: of the session.
    """

    def __init__(self, fields: Dict[str, Any], folder: str) -> None:
        self.kind: str = fields["kind"]
        self.name: str = fields["name"]
        self.nth: int = fields["nth"]
        self.place: Tuple[str, str] = (fields["module"], fields["phase"])
        self.step: int = fields["step"]
        self.rank: Optional[int] = fields["rank"]
        self.random: bool = fields.get("random", False)
        self.before: Deque[Any] = deque(maxlen=fields.get("before", 0))
        self.folder = os.path.join(folder, FOLDER)
        self.came = False

    def operation(self, recorder: Recorder, name: str, place: Tuple[str, str]) -> Optional[Capture]:
        """As `begin`; also what captures an operation that comes before the one."""
        found = self.begin(recorder, "op", name, place)
        if found is not None:
            self.came = True
            return found
        here = place == self.place and recorder.step == self.step
        if self.before.maxlen and here and not self.came:
            return Capture(self, recorder.torch, target=False)
        return None

    def begin(
        self, recorder: Recorder, kind: str, name: str, place: Tuple[str, str]
    ) -> Optional[Capture]:
        """What captures the call that is about to run; None where it is not the one.

        name: as JSON has it, without quotes. Before the call, so that no event of it is counted.
        """
        if kind != self.kind or place != self.place or recorder.step != self.step:
            return None
        if not self.is_called(name):
            return None
        if recorder.seen(kind, name, place) != self.nth or self.rank != ledger.layout()["rank"]:
            return None
        return Capture(self, recorder.torch)

    def is_called(self, name: str) -> bool:
        """Whether the event has this name: as JSON has it, without quotes."""
        return name == self.name or json.loads('"%s"' % name) == self.name


class Capture:
    """One call on its way into a folder: `take` and `value` for what it gets, `read`, `write`."""

    def __init__(self, awaited: Awaited, torch: Any, *, target: bool = True) -> None:
        self.awaited = awaited
        self.torch = torch
        self.target = target
        self.why = ""
        self._tensors: List[Tuple[str, Any]] = []
        self._numbers: Dict[int, int] = {}
        self._generators: List[bytes] = []
        self._table: List[Dict[str, Any]] = []
        self._pieces: List[bytes] = []
        self._base: Dict[str, Any] = {}

    # -- before the call --------------------------------------------------------------------------

    def guarded(self, look: Callable[[], None]) -> None:
        """Run `look`; what it cannot write down becomes the reason that is written."""
        try:
            look()
        except NotCaptured as error:
            self.why = self.why or str(error)

    @property
    def tensors(self) -> List[Any]:
        """What was taken, by number."""
        return [tensor for _, tensor in self._tensors]

    def take(self, name: str, tensor: Any) -> int:
        """The number of a tensor in the table; one that comes twice has one. Raises NotCaptured."""
        number = self._numbers.get(id(tensor))
        if number is None:
            _check(name, tensor)
            number = self._numbers[id(tensor)] = len(self._tensors)
            self._tensors.append((name, tensor))
        return number

    def value(self, name: str, value: Any) -> Any:
        """An argument as JSON. Raises NotCaptured.

        null, a boolean, an integer and a string are themselves; else a list of a word and what it
        is: ["tensor", NUMBER], ["float", HEX], ["complex", HEX, HEX], ["named", TEXT],
        ["list", …], ["tuple", …], ["dict", [NAME, …], …], ["generator", NUMBER, DEVICE].
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if isinstance(value, self.torch.Tensor):
            return ["tensor", self.take(name, value)]
        if type(value) is float:
            return ["float", value.hex()]
        if type(value) is complex:
            return ["complex", value.real.hex(), value.imag.hex()]
        if type(value) in (list, tuple) or type(value).__name__ in ("Size", "immutable_list"):
            word = "list" if isinstance(value, list) else "tuple"
            return [word] + [self.value("%s_%d" % (name, n), v) for n, v in enumerate(value)]
        if type(value) is dict and all(type(key) is str for key in value):
            return ["dict"] + [[key, self.value(name + "_" + key, v)] for key, v in value.items()]
        if isinstance(value, self.torch.Generator):
            self._generators.append(_state(value))
            return ["generator", len(self._generators) - 1, str(value.device)]
        return ["named", self._named(name, value)]

    def _named(self, name: str, value: Any) -> str:
        torch = self.torch
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        if isinstance(value, torch.device):
            return 'torch.device("%s")' % value
        kind = type(value)
        raise NotCaptured(
            "its argument %s is a %s.%s, which is not written down"
            % (name, kind.__module__, kind.__qualname__)
        )

    def piece(self, data: bytes) -> int:
        """The number of bytes that are no tensor's."""
        self._pieces.append(data)
        return len(self._pieces) - 1

    def read(self) -> None:
        """Copy the memory that was taken, and what else decides the bits. Raises NotCaptured."""
        for group in _groups(self._tensors):
            start = min(each[0] for each in group)
            if len({tensor.dtype for _, _, _, tensor in group}) > 1:
                start -= start % _GRAIN
            self._pieces.append(_copy(group[0][3], start, max(each[1] for each in group)))
            for _, _, number, tensor in group:
                at = tensor.storage_offset() * tensor.element_size() - start
                self._table.append(self._described(number, tensor, at, len(self._pieces) - 1))
        self._table.sort(key=lambda each: int(each["number"]))
        self._base = {"settings": settings(self.torch), "environ": _environ()}
        if self.awaited.random:
            self._base["random"] = random_states(self.torch)

    def _described(self, number: int, tensor: Any, at: int, piece: int) -> Dict[str, Any]:
        address = tensor.data_ptr()
        return {
            "number": number,
            "name": self._tensors[number][0],
            "dtype": str(tensor.dtype).rpartition(".")[2],
            "shape": list(tensor.shape),
            "strides": list(tensor.stride()),
            "offset": at // tensor.element_size(),
            "piece": piece,
            "device": tensor.device.type,
            "alignment": min(address & -address, _MOST_ALIGNED) if address else _MOST_ALIGNED,
            "conjugated": bool(tensor.is_conj()),
            "negated": bool(tensor.is_neg()),
        }

    # -- after the call ---------------------------------------------------------------------------

    def write(
        self, form: str, call: Dict[str, Any], before: Sequence[Tuple[Capture, Any]] = ()
    ) -> None:
        """Write the folder. form: which reader understands `call` ("torch", "triton", …).

        before: calls that came before it, with what captured them.
        """
        awaited = self.awaited
        table: Dict[str, Any] = {
            "version": VERSION,
            "kind": awaited.kind,
            "name": awaited.name,
            "torch": str(self.torch.__version__),
        }
        files: Dict[str, bytes] = {}
        if self.why:
            table["why"] = self.why
        else:
            table.update(self._base, form=form, **self._part(call, files))
            table["before"] = [each._part(its, files) for each, its in before]
        files[TABLE] = json.dumps(table).encode("ascii")
        write_folder(awaited.folder, files)

    def _part(self, call: Dict[str, Any], files: Dict[str, bytes]) -> Dict[str, Any]:
        """One call as JSON; its pieces become files."""
        first = len(files)
        files.update(("%d.bin" % at, piece) for at, piece in enumerate(self._pieces, start=first))
        return {
            "call": call,
            "tensors": self._table,
            "generators": [state.hex() for state in self._generators],
            "pieces": [hashlib.sha256(piece).hexdigest() for piece in self._pieces],
            "first": first,
        }


def digest_of(tensor: Any) -> Optional[str]:
    """SHA-256 over dtype, shape and bytes, as a repro prints it; None where it has no bytes."""
    try:
        return digest.digest(tensor, digest.SHA256)[0]
    except EvidenceError:
        return None


# -- memory ----------------------------------------------------------------------------------------


def _check(name: str, tensor: Any) -> None:
    """Raise NotCaptured for a tensor that is not strided memory of a known device."""
    what = ""
    if str(tensor.layout) != "torch.strided" or getattr(tensor, "is_nested", False):
        what = "its layout is %s" % ("nested" if tensor.is_nested else tensor.layout)
    elif tensor.is_quantized:
        what = "it is quantised: scale and zero point are part of it"
    elif tensor.device.type not in _DEVICES:
        what = "it is on the device %s" % tensor.device
    elif not all(isinstance(size, int) for size in tensor.shape):
        what = "its shape is symbolic"
    if what:
        raise NotCaptured("the tensor %s cannot be written down: %s" % (name, what))


def _groups(tensors: List[Tuple[str, Any]]) -> List[List[Tuple[int, int, int, Any]]]:
    """(start, end, number, tensor) of tensors whose memory overlaps, in bytes of their storage."""
    found: List[List[Tuple[int, int, int, Any]]] = []
    spans: Dict[Any, List[Tuple[int, int, int, Any]]] = {}
    for number, (_, tensor) in enumerate(tensors):
        start, end = _span(tensor)
        key: Any = ("empty", number)
        if end > start:
            key = (str(tensor.device), tensor.untyped_storage().data_ptr())
        spans.setdefault(key, []).append((start, end, number, tensor))
    for group in spans.values():
        reached = -1
        for each in sorted(group, key=lambda span: span[:3]):
            if each[0] < reached:
                found[-1].append(each)
            else:
                found.append([each])
            reached = max(reached, each[1])
    return found


def _span(tensor: Any) -> Tuple[int, int]:
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    if tensor.numel() == 0:
        return start, start
    steps = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    return start, start + (steps + 1) * size


def _copy(tensor: Any, start: int, end: int) -> bytes:
    """The bytes `start` to `end` of the storage of a tensor."""
    if end <= start:
        return b""
    storage = tensor.untyped_storage()
    if tensor.device.type != "cpu":
        torch = sys.modules["torch"]
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        here = whole.set_(storage, start, (end - start,), (1,)).cpu()
        return ctypes.string_at(here.data_ptr(), end - start)
    return ctypes.string_at(storage.data_ptr() + start, end - start)


# -- what else decides the bits --------------------------------------------------------------------

# What torch has unless somebody changed it. A default that another version has otherwise is part
# of the difference, so that only what was changed is written.
_FLAGS: Dict[str, Tuple[Any, ...]] = {
    "backends.cudnn.enabled": (True,),
    "backends.cudnn.benchmark": (False,),
    "backends.cudnn.deterministic": (False,),
    "backends.cudnn.allow_tf32": (True,),
    "backends.cuda.matmul.allow_tf32": (False,),
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (True,),
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (True,),
    "backends.cuda.matmul.allow_fp16_accumulation": (False,),
    "backends.mkldnn.enabled": (True,),
    "backends.mkldnn.deterministic": (False,),
    "backends.fp32_precision": ("none",),
    "backends.cuda.matmul.fp32_precision": ("none",),
    "backends.cudnn.conv.fp32_precision": ("tf32", "none"),  # torch 2.13 begins with the first
    "backends.cudnn.rnn.fp32_precision": ("tf32", "none"),
    "backends.mkldnn.matmul.fp32_precision": ("none",),
    "backends.mkldnn.conv.fp32_precision": ("none",),
    "backends.mkldnn.rnn.fp32_precision": ("none",),
    "utils.deterministic.fill_uninitialized_memory": (True,),
}
_CALLED: Dict[str, Tuple[str, Any]] = {
    "set_float32_matmul_precision": ("get_float32_matmul_precision", "highest"),
    "backends.cuda.enable_flash_sdp": ("backends.cuda.flash_sdp_enabled", True),
    "backends.cuda.enable_mem_efficient_sdp": ("backends.cuda.mem_efficient_sdp_enabled", True),
    "backends.cuda.enable_math_sdp": ("backends.cuda.math_sdp_enabled", True),
    "backends.cuda.enable_cudnn_sdp": ("backends.cuda.cudnn_sdp_enabled", True),
}
_OLDER = {
    "backends.cuda.matmul.fp32_precision": "backends.cuda.matmul.allow_tf32",
    "backends.mkldnn.matmul.fp32_precision": "set_float32_matmul_precision",
    "backends.cudnn.conv.fp32_precision": "backends.cudnn.allow_tf32",
    "backends.cudnn.rnn.fp32_precision": "backends.cudnn.allow_tf32",
}

# They are read by the libraries below torch, most of them once.
_VARIABLES = (
    *("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DYNAMIC"),
    *("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE"),
    *("OPENBLAS_CORETYPE", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE"),
    *("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT"),
    *("TORCH_CUDNN_V8_API_DISABLED", "TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT"),
)


def settings(torch: Any) -> Dict[str, Any]:
    """What the program set that changes bits.

    threads: how many torch computes with. flags: attributes, set: functions with their argument,
    by what comes after "torch.". deterministic: whether, and whether it only warns.
    """
    found: Dict[str, Any] = {"threads": torch.get_num_threads()}
    flags = {name: _attribute(torch, name, usual[0]) for name, usual in _FLAGS.items()}
    found["flags"] = {name: value for name, value in flags.items() if value not in _FLAGS[name]}
    found["set"] = {}
    for name, (getter, default) in _CALLED.items():
        value = _asked(torch, getter, default)
        if value != default:
            found["set"][name] = value
    _leave_one_name(torch, found["flags"], found["set"])
    if torch.are_deterministic_algorithms_enabled():
        found["deterministic"] = {
            "warn_only": torch.is_deterministic_algorithms_warn_only_enabled()
        }
    if torch.get_default_dtype() != torch.float32:
        found["default_dtype"] = str(torch.get_default_dtype())
    if _flushes(torch):
        found["flush_denormal"] = True
    return found


def _attribute(torch: Any, name: str, default: Any) -> Any:
    value = torch
    try:
        for part in name.split("."):
            value = getattr(value, part)
    except (AttributeError, RuntimeError):  # not in this version, or set by its newer name
        return default
    return value


def _asked(torch: Any, getter: str, default: Any) -> Any:
    read = _attribute(torch, getter, None)
    try:
        return default if read is None else read()
    except RuntimeError:  # set by its newer name
        return default


def _leave_one_name(torch: Any, flags: Dict[str, Any], called: Dict[str, Any]) -> None:
    """Of two names of one setting, the one that every version has."""
    mkldnn = "backends.mkldnn.matmul.fp32_precision"
    both = _attribute(torch, mkldnn, None) is not None
    if "backends.cuda.matmul.allow_tf32" in flags and both and mkldnn not in flags:
        called.pop("set_float32_matmul_precision", None)  # it would set that of mkldnn, too
    for newer, older in _OLDER.items():
        if older in flags or older in called:
            flags.pop(newer, None)


def _flushes(torch: Any) -> bool:
    """Whether this thread takes the smallest numbers for zero; torch has no function to ask."""
    least = torch.full((1,), 2.0**-140, dtype=torch.float32)
    return bool((least * 1.5).view(torch.int32).item() == 0)


def _environ() -> Dict[str, str]:
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}


def _state(generator: Any) -> bytes:
    state = generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.numel())


def random_states(torch: Any) -> Dict[str, Any]:
    """The state of each default generator, and the seed that gives it."""
    found = {"cpu": torch.default_generator}
    if getattr(torch.cuda, "_initialized", False):
        found["cuda"] = torch.cuda.default_generators[torch.cuda.current_device()]
    return {
        name: {"state": _state(each).hex(), "seed": _seed(torch, each)}
        for name, each in found.items()
    }


def _seed(torch: Any, generator: Any) -> Optional[int]:
    """The seed that gives a generator its state; None where it was drawn from since."""
    seed = int(generator.initial_seed())
    fresh = torch.Generator(device=generator.device)
    fresh.manual_seed(seed)
    return seed if _state(fresh) == _state(generator) else None


# -- files -----------------------------------------------------------------------------------------


def write_folder(folder: str, files: Dict[str, bytes]) -> None:
    """All files in a new folder below `folder`, on the disk. Ends the process where it cannot."""
    name = "%d-%s" % (os.getpid(), os.urandom(6).hex())
    own, final = os.path.join(folder, "." + name), os.path.join(folder, name)
    try:
        os.makedirs(own)
        for each, data in files.items():
            with open(os.path.join(own, each), "wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
        _sync(own)
        os.rename(own, final)
        _sync(folder)
    except OSError as error:
        faults.die("cannot write the captured call %s: %s" % (final, error.strerror))


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
