"""The GPUs this process may use, asked of NVML: no CUDA context, nothing that a fork can break.

CUDA itself may not be asked: initialising it in a process forbids it in every child forked later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

    Facts = Dict[str, Union[str, int]]

    class Device(NamedTuple):
        """One GPU or MIG device: capability is (major, minor), memory in bytes."""

        uuid: str
        name: str
        capability: Tuple[int, int]
        sms: int
        memory: int

else:
    from collections import namedtuple

    Device = namedtuple("Device", "uuid name capability sms memory")

_MIG_ENABLED = 1
_CORES_PER_SM = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
"""FP32 cores of one multiprocessor where they are not 128 (CUDA programming guide, Technical
Specifications per Compute Capability)."""


def facts(visible: Optional[str]) -> Facts:
    """Return "gpu", "gpu:capability", "gpu:sms", "gpu:count", "gpu:memory" and "driver".

    visible: the value of CUDA_VISIBLE_DEVICES, or None where it is not set

    Nothing where no GPU may be used.
    """
    library = _open()
    if library is None:
        return {}
    try:
        devices = chosen(_devices(library), visible)
        return describe(devices, _text(library, "nvmlSystemGetDriverVersion")) if devices else {}
    finally:
        _done(library, "nvmlShutdown")


def chosen(devices: List[Device], visible: Optional[str]) -> List[Device]:
    """Return the devices that CUDA_VISIBLE_DEVICES leaves. Pure.

    Numbers count in an order of CUDA's own. Where the devices differ from each other that order
    is not known here, and a number stands for any of them.
    """
    if visible is None:
        return devices
    kept: List[Device] = []
    for word in (part.strip() for part in visible.split(",")):
        if word.isdigit():
            found = devices if _differ(devices) else devices[int(word) : int(word) + 1]
        else:
            found = [device for device in devices if word and device.uuid.startswith(word)]
        if not found:  # CUDA stops at the first entry that names no device
            break
        kept += [device for device in found if device not in kept]
    return kept


def describe(devices: List[Device], driver: Optional[str]) -> Facts:
    """Return the facts of these devices; where they differ, each kind is listed. Pure."""
    found: Facts = {
        "gpu": _listed({device.name for device in devices}),
        "gpu:capability": _listed({"%d.%d" % device.capability for device in devices}),
        "gpu:sms": _listed({str(device.sms) for device in devices if device.sms}),
        "gpu:memory": _listed({str(device.memory >> 20) + " MiB" for device in devices}),
        "gpu:count": len(devices),
    }
    if driver:
        found["driver"] = driver
    return {name: value for name, value in found.items() if value != ""}


def _differ(devices: List[Device]) -> bool:
    return len({device[1:] for device in devices}) > 1


def _listed(values: Any) -> str:
    return ", ".join(sorted(values))


def _open() -> Any:
    import ctypes

    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if _done(library, "nvmlInit_v2") else None


def _done(library: Any, function: str, *arguments: Any) -> bool:
    """Call a function of NVML; False where it fails, or where this driver does not have it."""
    call = getattr(library, function, None)
    return call is not None and call(*arguments) == 0


def _devices(library: Any) -> List[Device]:
    import ctypes

    count = ctypes.c_uint()
    if not _done(library, "nvmlDeviceGetCount_v2", ctypes.byref(count)):
        return []
    found = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if not _done(library, "nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle)):
            continue
        capability = _capability(library, handle)
        parts = _mig_parts(library, handle)
        found += [_device(library, part, capability) for part in parts or [handle]]
    return found


def _device(library: Any, handle: Any, capability: Tuple[int, int]) -> Device:
    return Device(
        uuid=_text(library, "nvmlDeviceGetUUID", handle) or "",
        name=_text(library, "nvmlDeviceGetName", handle) or "",
        capability=capability,
        sms=_sms(library, handle, capability),
        memory=_memory(library, handle),
    )


def _capability(library: Any, handle: Any) -> Tuple[int, int]:
    import ctypes

    major, minor = ctypes.c_int(), ctypes.c_int()
    pointers = ctypes.byref(major), ctypes.byref(minor)
    _done(library, "nvmlDeviceGetCudaComputeCapability", handle, *pointers)
    return major.value, minor.value


def _mig_parts(library: Any, handle: Any) -> List[Any]:
    """Return the MIG devices of a GPU that is cut into such, else nothing."""
    import ctypes

    now, pending, most = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    modes = ctypes.byref(now), ctypes.byref(pending)
    if not _done(library, "nvmlDeviceGetMigMode", handle, *modes) or now.value != _MIG_ENABLED:
        return []
    _done(library, "nvmlDeviceGetMaxMigDeviceCount", handle, ctypes.byref(most))
    parts = []
    for index in range(most.value):
        part = ctypes.c_void_p()
        if _done(library, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index, ctypes.byref(part)):
            parts.append(part)
    return parts


def _sms(library: Any, handle: Any, capability: Tuple[int, int]) -> int:
    """Return the number of multiprocessors; 0 where this driver does not tell.

    MIG devices say it; for whole GPUs NVML only counts cores.
    """
    import ctypes

    attributes = (ctypes.c_uint * 16)()  # nvmlDeviceAttributes_t begins with the count
    if _done(library, "nvmlDeviceGetAttributes_v2", handle, ctypes.byref(attributes)):
        return int(attributes[0])
    cores = ctypes.c_uint()
    if not _done(library, "nvmlDeviceGetNumGpuCores", handle, ctypes.byref(cores)):
        return 0
    return cores.value // _CORES_PER_SM.get(capability, 128)


def _memory(library: Any, handle: Any) -> int:
    import ctypes

    sizes = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
    _done(library, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(sizes))
    return int(sizes[0])


def _text(library: Any, function: str, *handle: Any) -> Optional[str]:
    import ctypes

    buffer = ctypes.create_string_buffer(96)
    if not _done(library, function, *handle, buffer, len(buffer)):
        return None
    return buffer.value.decode("utf-8", "replace")
