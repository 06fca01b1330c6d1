"""What a callable may read or change: random generators and the memory of its inputs, put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pinner.inside.evidence.digest import parts_of
from pinner.plugin.values import bytes_of

Restore = Callable[[], None]


class Inputs:
    """The inputs of a callable, with everything in them that could change.

    named: names for messages, and the values: tensors, modules, arrays, generators, and lists,
    tuples and dicts of these. Numbers and other objects are passed as they are.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        self.tensors: dict[str, Any] = {}
        self.arrays: dict[str, Any] = {}
        self._restores: list[Restore] = []
        self._storages: dict[int, Any] = {}
        self._kept: list[Any] = []
        self._seen: set[int] = set()
        for name, value in named.items():
            self._take(name, value)
        self._kept = [storage.clone() for storage in self._storages.values()]

    @property
    def leaves(self) -> dict[str, Any]:
        """The tensors of which a backward pass leaves gradients."""
        return {n: t for n, t in self.tensors.items() if t.requires_grad and t.is_leaf}

    def restore(self) -> None:
        """Make everything as it was when this was made."""
        for restore in self._restores:
            restore()
        for storage, kept in zip(self._storages.values(), self._kept, strict=True):
            if storage.nbytes() != kept.nbytes():
                storage.resize_(kept.nbytes())
            storage.copy_(kept)

    def memory(self) -> list[bytes]:
        """The bytes of all memory and arrays, as they are restored."""
        stored = [bytes_of(_as_bytes(storage)) for storage in self._kept]
        return stored + [bytes_of(array) for array in self.arrays.values()]

    def replace(self, memory: Sequence[bytes]) -> None:
        """Take the memory of the same inputs in another process. Raises `ValueError`."""
        here = [len(each) for each in self.memory()]
        if here != [len(each) for each in memory]:
            raise ValueError(
                "the inputs have another form in a fresh process: expected memory of "
                f"{[len(each) for each in memory]} bytes, found {here}"
            )
        stored, arrays = memory[: len(self._kept)], memory[len(self._kept) :]
        for kept, data in zip(self._kept, stored, strict=True):
            if data:
                _as_bytes(kept).copy_(_from_bytes(data))
        for array, data in zip(self.arrays.values(), arrays, strict=True):
            _overwrite(array, data)
            self._restores.append(_restore_array(array))

    def _take(self, name: str, value: Any) -> None:
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        torch = sys.modules.get("torch")
        numpy = sys.modules.get("numpy")
        if torch is not None and isinstance(value, torch.Tensor):
            self._take_tensor(name, value)
        elif torch is not None and isinstance(value, torch.nn.Module):
            for kind, found in (
                ("parameter", value.named_parameters),
                ("buffer", value.named_buffers),
            ):
                for own, tensor in found():
                    self._take(f"{kind} {own} of {name}", tensor)
        elif torch is not None and isinstance(value, torch.Generator):
            self._restores.append(_restore_torch_generator(value))
        elif numpy is not None and isinstance(value, numpy.ndarray):
            if value.flags.writeable and not value.dtype.hasobject:
                self.arrays[name] = value
                self._restores.append(_restore_array(value))
        elif numpy is not None and isinstance(value, numpy.random.Generator):
            self._restores.append(_restore_generator(value))
        elif isinstance(value, random.Random):
            state = value.getstate()
            self._restores.append(lambda: value.setstate(state))
        elif isinstance(value, list):
            self._take_list(name, value)
        elif isinstance(value, dict):
            self._take_dict(name, value)
        elif isinstance(value, tuple):
            for number, part in enumerate(value):
                self._take(f"{name}[{number}]", part)

    def _take_tensor(self, name: str, tensor: Any) -> None:
        if tensor.requires_grad and not tensor.is_leaf:
            raise ValueError(
                f"{name} is the result of a calculation, whose graph can be walked back once: pass "
                "`x.detach().requires_grad_()`"
            )
        self.tensors[name] = tensor
        alias = tensor.detach()
        for part in _in_memory(alias):
            self._storages.setdefault(part.untyped_storage()._cdata, part.untyped_storage())
        if alias.layout == sys.modules["torch"].strided:
            self._restores.append(_restore_place(tensor, alias))

    def _take_list(self, name: str, value: list[Any]) -> None:
        parts = list(value)

        def restore() -> None:
            value[:] = parts

        self._restores.append(restore)
        for number, part in enumerate(parts):
            self._take(f"{name}[{number}]", part)

    def _take_dict(self, name: str, value: dict[Any, Any]) -> None:
        parts = dict(value)

        def restore() -> None:
            value.clear()
            value.update(parts)

        self._restores.append(restore)
        for key, part in parts.items():
            self._take(f"{name}[{key!r}]", part)


def random_state() -> dict[str, Any]:
    """The state of every random generator that programs share, of libraries that are loaded."""
    state: dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            torch.cuda.init()  # one that started inside the first run would begin elsewhere
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put the generators back."""
    random.setstate(state["python"])
    if "numpy" in state:
        import numpy as np

        np.random.set_state(state["numpy"])
    if "torch" in state:
        import torch

        torch.set_rng_state(state["torch"])
        if "cuda" in state:
            torch.cuda.set_rng_state_all(state["cuda"])


def _in_memory(tensor: Any) -> Iterator[Any]:
    """The tensors with memory of their own that a tensor is made of."""
    parts = None if tensor.is_quantized else parts_of(tensor)
    if parts is None:
        yield tensor
        return
    for part in parts[1]:
        if hasattr(part, "untyped_storage"):
            yield from _in_memory(part)


def _restore_place(tensor: Any, alias: Any) -> Restore:
    """A tensor that was given other memory (`x.data = …`, `resize_`) gets its own back."""

    def restore() -> None:
        same = tensor.data_ptr() == alias.data_ptr() and tensor.shape == alias.shape
        if not same or tensor.stride() != alias.stride():
            tensor.data = alias

    return restore


def _restore_array(array: Any) -> Restore:
    kept = array.copy()

    def restore() -> None:
        array[...] = kept

    return restore


def _restore_generator(generator: Any) -> Restore:
    state = generator.bit_generator.state

    def restore() -> None:
        generator.bit_generator.state = state

    return restore


def _restore_torch_generator(generator: Any) -> Restore:
    state = generator.get_state()

    def restore() -> None:
        generator.set_state(state)

    return restore


def _overwrite(array: Any, data: bytes) -> None:
    import numpy as np

    array[...] = np.frombuffer(data, dtype=array.dtype).reshape(array.shape)


def _as_bytes(storage: Any) -> Any:
    import torch

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _from_bytes(data: bytes) -> Any:
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
