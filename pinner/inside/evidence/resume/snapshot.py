"""All state that a process holds and that its next steps depend on, by name, as digests.

The kinds say how a lack is judged (`pinner.compare.resume`):
state    the next steps read it
derived  tensors that no checkpoint holds, and that may be made again: non-persistent buffers, plain
         attributes of modules (scales, seeds, caches)
random   a random stream: it matters if the run draws from it
batch    the last batch of a loader: where in its data it is
compile  what a restart cannot bring back
passed   what the program gave to checkpoint_saved and checkpoint_restored
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ... import pins, session
from . import compiled, loaders, nested, program, registry, streams

if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, Optional, Set, Tuple

    State = Dict[str, Dict[str, Any]]

_HOOKS = ("_parameters", "_buffers", "_modules")


def take(passed: Optional[Any] = None) -> State:
    """Return the state of this process, and of what the program passed."""
    found = _State()
    for name, digest in streams.digests().items():
        found.add("random", name, "", digest)
    _of_generators(found)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "nn"):
        _of_loaders(found)
        seen = _of_modules(found, torch)
        _of_optimizers(found, seen)
        _of_schedules(found)
        _of_scalers(found)
        _of_compiler(found)
    active = session.current()
    if active is not None and active.pins is not None:
        found.add("state", "lock", "digest", pins.load().lock)
    if passed is not None:
        _of_passed(found, passed)
    return found.groups


def random_only() -> State:
    """Return the random streams alone."""
    found = _State()
    for name, digest in streams.digests().items():
        found.add("random", name, "", digest)
    _of_generators(found)
    return found.groups


class _State:
    def __init__(self) -> None:
        self.groups: State = {}

    def add(self, kind: str, name: str, leaf: str, digest: str) -> None:
        group = self.groups.setdefault(name, {"kind": kind, "leaves": {}})
        group["leaves"][leaf] = digest


def _of_loaders(found: _State) -> None:
    for name, loader, position in loaders.positions():
        if position.last is not None:
            found.add("batch", "position of " + name, "last batch", position.last)
        epoch = loaders.sampler_epoch(loader)
        if epoch is not None:
            found.add("state", "epoch of the sampler of " + name, "epoch", nested.of(epoch))
        iterator = position.iterator()
        if iterator is not None and getattr(loader, "num_workers", 0) > 0:
            seed = getattr(iterator, "_base_seed", None)
            found.add("random", "worker seeds of " + name, "base seed", nested.of(seed))


def _of_generators(found: _State) -> None:
    """Add the random streams of loaders, and those that the program holds besides."""
    seen = set()
    for name, loader, _ in loaders.positions():
        for place, generator in loaders.generators(loader):
            seen.add(id(generator))
            digest = nested.of(nested.generator_state(generator))
            found.add("random", "generator of " + name, place, digest)
    for place, generator in program.generators():
        if id(generator) not in seen:
            digest = nested.of(nested.generator_state(generator))
            found.add("random", "random streams of the program", place, digest)


def _of_modules(found: _State, torch: Any) -> Set[int]:
    """Add what modules hold; return the ids of their parameters."""
    seen: Set[int] = set()
    for name, root in registry.roots(torch):
        for path, parameter in root.named_parameters():
            seen.add(id(parameter))
            low = "low-precision weights of " if _is_low(parameter) else "parameters of "
            found.add("state", low + name, path, nested.of(parameter))
        for path, module in root.named_modules():
            _of_module(found, torch, name, path, module)
    return seen


def _of_module(found: _State, torch: Any, root: str, path: str, module: Any) -> None:
    prefix = path + "." if path else ""
    transient = getattr(module, "_non_persistent_buffers_set", ())
    for name, buffer in module._buffers.items():
        if buffer is not None:
            kind = "derived" if name in transient else "state"
            found.add(kind, _called(name, "buffers", root), prefix + name, nested.of(buffer))
    for name, value in vars(module).items():
        if name in _HOOKS or name.endswith("_hooks"):
            continue
        for leaf, tensor in _plain_tensors(torch, value, name, 2):
            found.add(
                "derived", _called(leaf, "other tensors", root), prefix + leaf, nested.of(tensor)
            )
        if nested.is_generator(value):
            state = nested.of(nested.generator_state(value))
            found.add("random", "generators in " + root, prefix + name, state)


def _called(name: str, otherwise: str, root: str) -> str:
    """Return the group of a tensor that is no parameter: scales and seeds are called so."""
    low = name.lower()
    if "scale" in low or "amax" in low:
        return "scales of " + root
    if "seed" in low or "rng" in low or "philox" in low:
        return "seeds of " + root
    return "%s of %s" % (otherwise, root)


def _plain_tensors(torch: Any, value: Any, path: str, depth: int) -> Iterator[Tuple[str, Any]]:
    """Yield tensors that a module holds past its parameters and buffers, two levels deep.

    Objects are looked into by `vars` alone: Transformer Engine keeps its scales in such.
    """
    if isinstance(value, torch.Tensor):
        if not isinstance(value, torch.nn.Parameter):
            yield path, value
        return
    if depth == 0 or isinstance(value, (torch.nn.Module, type)):
        return
    if isinstance(value, dict):
        parts = [(str(name), part) for name, part in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [(str(index), part) for index, part in enumerate(value)]
    elif hasattr(value, "__dict__") and not callable(value):
        parts = [(name, part) for name, part in vars(value).items()]
    else:
        return
    for name, part in parts:
        yield from _plain_tensors(torch, part, "%s.%s" % (path, name), depth - 1)


def _is_low(tensor: Any) -> bool:
    """Whether a weight has fewer than 16 bits, or is a subclass of packed values and scales."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return int(tensor.element_size()) < 2
    names = tensor.__tensor_flatten__()[0]
    return any(_is_low(getattr(tensor, name)) for name in names)


def _of_optimizers(found: _State, seen: Set[int]) -> None:
    for name, optimizer in registry.optimizers.living():
        fields = vars(optimizer)
        if "param_groups" in fields and "state" in fields:
            _of_optimizer(found, name, optimizer, seen)


def _of_optimizer(found: _State, name: str, optimizer: Any, seen: Set[int]) -> None:
    """Add what stands in `state` and `param_groups`; `state_dict` may gather, and has hooks."""
    number = -1
    for index, group in enumerate(optimizer.param_groups):
        for field, value in group.items():
            if field != "params":
                for leaf, part in nested.leaves(value, "group %d %s" % (index, field)):
                    found.add("state", "hyperparameters of " + name, leaf, nested.of(part))
        for parameter in group["params"]:
            number += 1
            if id(parameter) not in seen:
                found.add("state", "parameters of " + name, str(number), nested.of(parameter))
            for field, value in (optimizer.state.get(parameter) or {}).items():
                called = "step counts" if field == "step" else "state %r" % str(field)
                for leaf, part in nested.leaves(value, "parameter %d" % number):
                    found.add("state", "%s of %s" % (called, name), leaf, nested.of(part))


def _of_schedules(found: _State) -> None:
    """Add what a learning-rate schedule counts. How often `step` was called moves no bit."""
    for name, schedule in registry.schedules.living():
        for field, value in sorted(vars(schedule).items()):
            if field == "optimizer" or (field.startswith("_") and field != "_last_lr"):
                continue
            if isinstance(value, (bool, int, float, str, list, tuple, dict)):
                for leaf, part in nested.leaves(_without_objects(value), field):
                    found.add("state", "learning-rate schedule " + name, leaf, nested.of(part))


def _without_objects(value: Any) -> Any:
    """Return `value` without schedules inside it, which are there by themselves."""
    if isinstance(value, (list, tuple)):
        return [each for each in value if not hasattr(each, "state_dict")]
    return value


def _of_scalers(found: _State) -> None:
    for name, scaler in registry.scalers.living():
        if "_enabled" in vars(scaler):
            for field, value in sorted(scaler.state_dict().items()):
                found.add("state", "gradient scaler " + name, field, nested.of(value))


def _of_compiler(found: _State) -> None:
    for name, sizes in compiled.marks().items():
        found.add("compile", "compile state", name, sizes)
    if compiled.graphs():
        found.add("compile", "compile state", "graphs", str(compiled.graphs()))


def _of_passed(found: _State, passed: Any) -> None:
    for path, value in nested.leaves(passed):
        head, _, rest = path.partition("/")
        name = repr(head) if head else "the value"
        found.add("passed", name, rest, nested.of(value))


def held(torch: Any) -> Iterator[Any]:
    """Yield the parameters, buffers and optimizer state of this process."""
    for _, root in registry.roots(torch):
        yield from root.parameters()
        yield from root.buffers()
    for _, optimizer in registry.optimizers.living():
        for group in vars(optimizer).get("param_groups", ()):
            for parameter in group["params"]:
                yield parameter
                for value in (optimizer.state.get(parameter) or {}).values():
                    if isinstance(value, torch.Tensor):
                        yield value
