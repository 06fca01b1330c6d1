"""Collectives, sends and receives: what each rank gave and got. No collective is ever added."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, NamedTuple

from .hashing import collected

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Dict, List, Tuple

    from .operations import Facts
    from .recorder import Recorder

    Roles = Tuple[Tuple[str, ...], Tuple[str, ...]]

# Function of torch.distributed: (arguments it sends, arguments it fills).
_COLLECTIVES: Dict[str, Roles] = {
    "all_reduce": (("tensor",), ("tensor",)),
    "all_reduce_coalesced": (("tensors",), ("tensors",)),
    "broadcast": (("tensor",), ("tensor",)),
    "reduce": (("tensor",), ("tensor",)),
    "all_gather": (("tensor",), ("tensor_list",)),
    "all_gather_coalesced": (("input_tensor_list",), ("output_tensor_lists",)),
    "all_gather_into_tensor": (("input_tensor",), ("output_tensor",)),
    "gather": (("tensor",), ("gather_list",)),
    "scatter": (("scatter_list",), ("tensor",)),
    "reduce_scatter": (("input_list",), ("output",)),
    "reduce_scatter_tensor": (("input",), ("output",)),
    "all_to_all": (("input_tensor_list",), ("output_tensor_list",)),
    "all_to_all_single": (("input",), ("output",)),
    "barrier": ((), ()),
}
_POINT_TO_POINT: Dict[str, Roles] = {
    "send": (("tensor",), ()),
    "recv": ((), ("tensor",)),
    "isend": (("tensor",), ()),
    "irecv": ((), ("tensor",)),
}
# Of torch.distributed._functional_collectives: what they return is filled when it is waited for.
_FUNCTIONAL: Dict[str, Tuple[str, ...]] = {
    "broadcast": ("self",),
    "all_reduce": ("self",),
    "all_gather_tensor": ("self",),
    "reduce_scatter_tensor": ("self",),
    "all_reduce_coalesced": ("self",),
    "all_gather_into_tensor_coalesced": ("self",),
    "reduce_scatter_tensor_coalesced": ("inputs",),
    "all_to_all_single": ("self",),
    "permute_tensor": ("self",),
}
_MOST_PENDING = 4096


class _Pending:
    """A collective whose results somebody will wait for."""

    def __init__(self, work: Any, kind: str, name: str, outs: List[Tuple[str, Any]]) -> None:
        self.work = work  # held, so that no other object gets its id
        self.kind = kind
        self.name = name
        self.outs = outs


_pending: Dict[int, _Pending] = {}


def install(recorder: Recorder, module: ModuleType) -> None:
    """Wrap the functions of `torch.distributed.distributed_c10d`, just executed."""
    for kind, table in (("collective", _COLLECTIVES), ("p2p", _POINT_TO_POINT)):
        for name, roles in table.items():
            function = getattr(module, name, None)
            if inspect.isfunction(function):
                wrapped = _wrapped(recorder, kind, name, function, roles)
                setattr(module, name, wrapped)
                _export_again(recorder.torch, name, function, wrapped)
    work = getattr(module, "Work", None)
    if work is not None:
        _follow_waits(recorder, work)


def _export_again(torch: Any, name: str, function: Any, wrapped: Any) -> None:
    """Where `import torch` brought the module along, `torch.distributed` has taken its names."""
    package = getattr(torch, "distributed", None)
    if getattr(package, name, None) is function:
        setattr(package, name, wrapped)


def install_functional(recorder: Recorder, module: ModuleType) -> None:
    """Wrap the functions of `torch.distributed._functional_collectives`, just executed."""
    for name, sent in _FUNCTIONAL.items():
        function = getattr(module, name, None)
        if inspect.isfunction(function):
            setattr(module, name, _wrapped_functional(recorder, name, function, sent))
    wait = getattr(module, "wait_tensor", None)
    if inspect.isfunction(wait):
        module.wait_tensor = _wrapped_wait(recorder, wait)  # type: ignore[attr-defined]


def dispatched(
    recorder: Recorder, facts: Facts, function: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Any:
    """A collective that comes from C++, such as the reducer of DistributedDataParallel.

    What it fills is not read: nobody tells us when it is complete.
    """
    tensor = recorder.torch.Tensor
    notes: Dict[str, Any] = {"async": True}
    place = recorder.place()
    with recorder.unseen():
        sent = _entries(recorder, _named(tensor, args), notes)
    recorder.log.before_waiting()
    result = function(*args, **kwargs)
    for _, each in _named(tensor, args):  # by somebody else's hand
        recorder.memory.written(each, recorder.memory.number(each))
    recorder.event("collective", facts.name, place, sent, (), notes=notes)
    return result


def _named(tensor: type, args: Tuple[Any, ...]) -> List[Tuple[str, Any]]:
    return [pair for at, each in enumerate(args) for pair in collected(tensor, each, str(at))]


def _wrapped(
    recorder: Recorder, kind: str, name: str, function: Callable[..., Any], roles: Roles
) -> Callable[..., Any]:
    signature = inspect.signature(function)
    torch = recorder.torch

    @functools.wraps(function)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        thread = recorder.thread
        if thread.inside or not recorder.looking():
            return function(*args, **kwargs)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # the function itself says what is wrong
            return function(*args, **kwargs)
        what = _What(kind, name, roles)
        return _run(recorder, what, given, lambda: function(*args, **kwargs))

    return collective


class _What(NamedTuple):
    """Which function: its kind of event, its name, and what its arguments are for."""

    kind: str
    name: str
    roles: Roles


def _run(recorder: Recorder, what: _What, given: Dict[str, Any], call: Callable[[], Any]) -> Any:
    kind, name, roles = what
    tensor = recorder.torch.Tensor
    sent = [pair for role in roles[0] for pair in collected(tensor, given.get(role), role)]
    filled = [pair for role in roles[1] for pair in collected(tensor, given.get(role), role)]
    notes: Dict[str, Any] = {}
    _note_group(recorder, given, notes)
    place = recorder.place()
    with recorder.unseen():
        ins = _entries(recorder, sent, notes)
    recorder.log.before_waiting()  # it may wait for ever for a rank that does not come
    recorder.thread.inside += 1
    try:
        work = call()
    finally:
        recorder.thread.inside -= 1
    late = work is not None and (given.get("async_op") or name in ("isend", "irecv"))
    if late:
        notes["async"] = True
        for _, each in filled:
            recorder.memory.never_complete(recorder.memory.number(each))
        _remember(recorder, _Pending(work, kind, name, filled))
    with recorder.unseen():
        if not late:
            _arrived(recorder, filled)
        outs = _entries(recorder, filled, notes)
    recorder.event(kind, name, place, ins, outs, notes=notes or None)
    return work


def _note_group(recorder: Recorder, given: Dict[str, Any], notes: Dict[str, Any]) -> None:
    distributed = recorder.torch.distributed
    ranks = getattr(distributed, "get_process_group_ranks", None)
    try:
        if ranks is not None and distributed.is_initialized():
            group = given.get("group")  # torch 2.4 does not take None for all of them
            notes["group"] = list(ranks(distributed.group.WORLD if group is None else group))
    except (ValueError, RuntimeError, KeyError):  # this rank is not a member
        pass
    for role in ("src", "dst", "tag"):
        if isinstance(given.get(role), int):
            notes[role] = given[role]


def _entries(recorder: Recorder, named: List[Tuple[str, Any]], notes: Dict[str, Any]) -> List[str]:
    plain = [(path, _local(each)) for path, each in named]
    if not plain:
        return []
    return recorder.entries([path for path, _ in plain], [each for _, each in plain], notes)


def _local(tensor: Any) -> Any:
    return tensor.elem if type(tensor).__name__ == "AsyncCollectiveTensor" else tensor


def _arrived(recorder: Recorder, filled: List[Tuple[str, Any]]) -> None:
    for _, each in filled:
        number = recorder.memory.number(each)
        recorder.memory.flying.pop(number, None)
        recorder.memory.written(each, number)


def _remember(recorder: Recorder, pending: _Pending) -> None:
    if len(_pending) >= _MOST_PENDING:  # nobody waits for these
        for key in list(_pending)[: _MOST_PENDING // 2]:
            _arrived(recorder, _pending.pop(key).outs)
    _pending[id(pending.work)] = pending


def _follow_waits(recorder: Recorder, work: Any) -> None:
    original = work.wait

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        pending = _pending.pop(id(self), None)
        if pending is None:
            return result
        _arrived(recorder, pending.outs)
        if recorder.looking() and not recorder.thread.inside:
            notes: Dict[str, Any] = {}
            with recorder.unseen():
                outs = _entries(recorder, pending.outs, notes)
            name = pending.name + ".wait"
            recorder.event(pending.kind, name, recorder.place(), (), outs, notes=notes or None)
        return result

    try:
        work.wait = wait
    except TypeError:  # a torch whose classes cannot be changed: what is late is never read
        return


def _wrapped_functional(
    recorder: Recorder, name: str, function: Callable[..., Any], sent: Tuple[str, ...]
) -> Callable[..., Any]:
    signature = inspect.signature(function)
    torch = recorder.torch

    @functools.wraps(function)
    def functional(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if recorder.thread.inside or not recorder.looking():
            return function(*args, **kwargs)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)
        return _run_functional(recorder, name, sent, given, lambda: function(*args, **kwargs))

    return functional


def _run_functional(
    recorder: Recorder,
    name: str,
    sent: Tuple[str, ...],
    given: Dict[str, Any],
    call: Callable[[], Any],
) -> Any:
    tensor = recorder.torch.Tensor
    notes: Dict[str, Any] = {"async": True}
    place = recorder.place()
    given_tensors = [pair for role in sent for pair in collected(tensor, given.get(role), role)]
    with recorder.unseen():
        ins = _entries(recorder, given_tensors, notes)
    recorder.log.before_waiting()
    recorder.thread.inside += 1
    try:
        result = call()
    finally:
        recorder.thread.inside -= 1
    late = [(path, _local(each)) for path, each in collected(tensor, result)]
    waited = [pair for pair, each in zip(late, collected(tensor, result)) if pair[1] is each[1]]
    memory = recorder.memory
    for _, each in late:
        memory.never_complete(memory.fresh(each, set()))
    if late and len(waited) == len(late):  # no wrapper around it: it was waited for by now
        _arrived(recorder, late)
        notes.pop("async")
    with recorder.unseen():
        outs = _entries(recorder, late, notes)
    recorder.event("collective", name, place, ins, outs, notes=notes or None)
    return result


def _wrapped_wait(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    torch = recorder.torch

    @functools.wraps(function)
    def wait_tensor(tensor: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(tensor)
        recorder.thread.inside += 1
        try:
            result = function(tensor)
        finally:
            recorder.thread.inside -= 1
        if recorder.thread.inside or recorder.thread.busy:
            return result
        late = [("0", _local(tensor))]
        _arrived(recorder, late)
        if recorder.open:
            notes: Dict[str, Any] = {}
            with recorder.unseen():
                outs = _entries(recorder, late, notes)
            recorder.event(
                "collective", "wait_tensor", recorder.place(), (), outs, notes=notes or None
            )
        return result

    return wait_tensor


def forget() -> None:
    """In a child that was forked: it waits for nothing of its parent's."""
    _pending.clear()
